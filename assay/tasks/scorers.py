"""From the words of a recipe to what grades."""

from __future__ import annotations

from difflib import get_close_matches

from assay.errors import ConfigError
from assay.tasks.answers import exact, maths
from assay.tasks.gym_scores import gym
from assay.tasks.named import find_function
from assay.tasks.rewards import Convention, wrap_reward
from assay.tasks.submission import Scorer, row_by_row

BUILT_IN = ("exact", "maths", "gym")


def make_scorer(reward: str, convention: Convention) -> Scorer:
    """Return what a reward names, with all that it imports.

    Args:
        reward: one of :data:`BUILT_IN`, or ``"package.module:function"``.
        convention: how a function is called; see :func:`assay.tasks.rewards.wrap_reward`.

    Raises:
        ConfigError: there is no such reward, it cannot be imported, or a convention is set for a built-in one.
    """
    if ":" in reward:
        function = find_function(reward, "reward")
        try:
            return wrap_reward(function, convention)
        except (ConfigError, ValueError, TypeError) as error:
            raise ConfigError(f"reward {reward!r}: {error}") from error
    if reward not in BUILT_IN:
        near = get_close_matches(reward, BUILT_IN, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"reward {reward!r}: expected {', '.join(BUILT_IN)} or package.module:function{hint}")
    if convention != "auto":
        raise ConfigError(f"grading.convention = {convention!r} does nothing for reward {reward!r}; leave it out")
    return row_by_row(maths() if reward == "maths" else {"exact": exact, "gym": gym}[reward])
