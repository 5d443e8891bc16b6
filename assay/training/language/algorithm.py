"""From a recipe's names to the core's: which estimator runs, under which settings."""

from __future__ import annotations

import difflib
import re
from typing import Any

from assay.core.algorithms import ALGORITHMS
from assay.core.estimator import Algorithm
from assay.core.settings import PLACEMENTS, Settings, Value
from assay.errors import ConfigError
from assay.training.language.options import RLOptions

BETA = 0.03
"""Weight of the KL penalty where a recipe names none, in reward per nat."""
RENAMED = {"epsilon": "clip_low", "epsilon_high": "clip_high", "delta": "dual_clip"}
"""Settings whose name in a recipe is TRL's, with the core's."""
SAME = (
    "entropy",
    "eps",
    "k",
    "length",
    "level",
    "weight_low",
    "weight_high",
    "dynamic_sampling",
    "overlong_length",
    "overlong_cache",
)
"""Settings with one name in both."""
RATIOS = frozenset({"clip_low", "weight_low", "weight_high"})
"""Settings of which an algorithm reads one if it has a ratio of the policy to an older one."""


def estimator(rl: RLOptions) -> tuple[Algorithm, Settings]:
    """Return the algorithm that a recipe names, and its settings.

    Raises:
        ConfigError: there is no such algorithm, it does not read a setting that is given, or a setting is out of range,
            contradicts another one or can do nothing.
    """
    if rl.algorithm not in ALGORITHMS:
        near = difflib.get_close_matches(rl.algorithm, ALGORITHMS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(ALGORITHMS)}"
        raise ConfigError(f"rl.algorithm = {rl.algorithm!r}: unknown; {hint}")
    algorithm = ALGORITHMS[rl.algorithm]
    _check_alive(rl, algorithm)
    try:
        settings = algorithm.settle(_given(rl, algorithm))
    except ConfigError as error:
        raise ConfigError(f"rl.{_in_recipe_words(str(error))}") from error
    _check_settled(rl, algorithm, settings)
    return algorithm, settings


def has_ratios(algorithm: Algorithm) -> bool:
    """Return whether an algorithm corrects, or at least bounds, how far the policy is from what drew the responses."""
    return algorithm.any_sampler or not RATIOS.isdisjoint(algorithm.live)


def corrects_sampler(algorithm: Algorithm) -> bool:
    """Return whether it weighs responses by what drew them, and not by the policy when the update began alone."""
    return algorithm.any_sampler or "level" in algorithm.live


def penalty(rl: RLOptions, algorithm: Algorithm) -> tuple[float, str]:
    """Return the weight of the KL penalty and where it enters, where one or both are left to the default."""
    if rl.kl is None and rl.beta is None:
        return (BETA, "reward") if why_no_penalty(rl, algorithm) is None else (0.0, "none")
    if rl.kl is None:
        return rl.beta or 0.0, "reward" if rl.beta else "none"
    if rl.beta is None:
        return (0.0 if rl.kl == "none" else BETA), rl.kl
    return rl.beta, rl.kl


def why_no_penalty(rl: RLOptions, algorithm: Algorithm) -> str | None:
    """Say why an algorithm cannot have the KL in the reward, which is the default, or None where it can."""
    if "reward" in algorithm.refuses:
        return f"{algorithm.name} {algorithm.refuses['reward'].partition(';')[0]}"
    if algorithm.defaults.dynamic_sampling if rl.dynamic_sampling is None else rl.dynamic_sampling:
        return "dynamic_sampling drops groups by their rewards, and with them their KL"
    return None


def settings_read(algorithm: Algorithm, settings: Settings) -> dict[str, Any]:
    """Return every setting that an algorithm reads and its value, defaults included, under a recipe's names."""
    names = {core: name for name, core in RENAMED.items()}
    return {names.get(name, name): getattr(settings, name) for name in algorithm.reads}


def _given(rl: RLOptions, algorithm: Algorithm) -> dict[str, Value]:
    """Return what a recipe sets, under the core's names."""
    values = {core: getattr(rl, name) for name, core in RENAMED.items()} | {name: getattr(rl, name) for name in SAME}
    given: dict[str, Value] = {name: value for name, value in values.items() if value is not None}
    if rl.epsilon is not None and rl.epsilon_high is None:
        given["clip_high"] = rl.epsilon
    if "length" in algorithm.live:
        given.setdefault("length", rl.max_completion_length)
    given["beta"], given["kl"] = penalty(rl, algorithm)
    return given


def _in_recipe_words(message: str) -> str:
    """Put a recipe's names for the core's."""
    for name, core in RENAMED.items():
        message = re.sub(rf"\b{core}\b(?!:)", name, message)
    return message


def _check_alive(rl: RLOptions, algorithm: Algorithm) -> None:
    """Refuse ratios' settings where every ratio is 1, and several updates where there are no ratios."""
    if rl.num_iterations > 1:
        if not has_ratios(algorithm):
            raise ConfigError(
                f"rl.num_iterations = {rl.num_iterations}: {algorithm.name} has no ratio to what drew the responses, "
                "so that from the second update on it would not ascend what it states; use 1, or an algorithm with "
                "ratios: ppo or grpo (clipped), sequence_is (without bias)"
            )
        return
    dead = [name for name, core in RENAMED.items() if getattr(rl, name) is not None and core in algorithm.live]
    if "level" not in algorithm.live:
        dead += [
            name for name in ("weight_low", "weight_high") if getattr(rl, name) is not None and name in algorithm.live
        ]
    if dead:
        raise ConfigError(
            f"rl.{dead[0]} = {getattr(rl, dead[0])} can do nothing while rl.num_iterations = 1: each batch is used "
            "for one update, in which every ratio is 1; leave it out, or use 2 iterations or more"
        )


def _check_settled(rl: RLOptions, algorithm: Algorithm, settings: Settings) -> None:
    """Refuse what only the settled settings show."""
    least, why = algorithm.least, f"{algorithm.name} needs a group of at least {algorithm.least}"
    if "k" in algorithm.live and settings.k > least:
        least, why = settings.k, f"pass@{settings.k} needs a group of at least {settings.k}"
    if rl.num_generations < least:
        raise ConfigError(f"rl.num_generations = {rl.num_generations}: {why}; use {least} or more")
    if settings.kl in PLACEMENTS and PLACEMENTS[settings.kl].field is None:
        raise ConfigError(
            f"rl.kl = {settings.kl}: {PLACEMENTS[settings.kl].on_policy}, so that it adds noise and no penalty; "
            "use reward, or k2_sequence_loss or k3_ratio_sequence_loss for the same KL in the loss"
        )
    if settings.kl.startswith("exact_") and (rl.top_k or rl.top_p < 1):
        raise ConfigError(
            f"rl.kl = {settings.kl} is over the whole vocabulary, and rl.top_k = {rl.top_k}, rl.top_p = {rl.top_p} "
            "draw from a part of it; use top_k = 0 and top_p = 1, or a sampled KL such as reward"
        )
    if settings.overlong_length - settings.overlong_cache >= rl.max_completion_length:
        raise ConfigError(
            f"rl.overlong_length = {settings.overlong_length} can do nothing: its penalty begins above "
            f"{settings.overlong_length - settings.overlong_cache} tokens, and rl.max_completion_length = "
            f"{rl.max_completion_length}; use a smaller one"
        )
