"""Reward functions written for other trainers, called as those call them.

TRL's ``reward_func(prompts, completions, completion_ids, **columns) -> list[float | None]`` is called once a batch,
verl's ``compute_score(data_source, solution_str, ground_truth, extra_info=None)`` once a response. Both may be
``async``.

What a score says: 1 or more is right, less is wrong. None is no score at all, and is counted as unparseable. Anything
else, NaN and infinities too, is a fault of the function and raises.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from assay.errors import ConfigError, InputError
from assay.tasks.submission import Mark, Scorer, Submission, row_by_row

Convention = Literal["auto", "trl", "verl"]


class RewardError(InputError):
    """A reward function returned what is no reward.

    Attributes:
        row: of the batch it was given; None where it is about the whole.
    """

    def __init__(self, words: str, row: int | None = None) -> None:
        super().__init__(words, row)
        self.row = row

    def __str__(self) -> str:
        return str(self.args[0])


def wrap_reward(function: Callable[..., Any], convention: Convention) -> Scorer:
    """Return the scorer that calls a reward function as its own trainer would.

    Args:
        function: to be called by keyword, with the parameters it names, or all there are where it takes ``**kwargs``.
        convention: ``"auto"`` tells by ``completions`` (TRL) or ``solution_str`` (verl) among its parameters.

    Raises:
        ConfigError: the parameters do not tell.
    """
    parameters = inspect.signature(function).parameters
    if convention == "auto":
        convention = _convention_of(set(parameters))
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())

    def call(offered: Mapping[str, Any]) -> Any:
        returned = function(**{name: value for name, value in offered.items() if takes_all or name in parameters})
        return asyncio.run(_finish(returned)) if inspect.isawaitable(returned) else returned

    if convention == "trl":
        return Scorer(lambda batch: _marks(call(_trl_arguments(batch)), len(batch)), whole=True)
    return row_by_row(lambda submission: _verl_mark(call(_verl_arguments(submission))))


def _convention_of(names: set[str]) -> Convention:
    told: list[Convention] = []
    if "completions" in names:
        told.append("trl")
    if "solution_str" in names:
        told.append("verl")
    if len(told) != 1:
        raise ConfigError(
            f"parameters {', '.join(sorted(names)) or 'none'}: 'completions' tells TRL's convention and 'solution_str' "
            "verl's; set grading.convention to trl or verl"
        )
    return told[0]


async def _finish(returned: Any) -> Any:
    return await returned


def _trl_arguments(batch: Sequence[Submission]) -> dict[str, Any]:
    """Return what TRL 1.16 passes: every argument a list with one entry a response."""
    rows = [{"answer": submission.answer, **submission.columns} for submission in batch]
    names = [name for name in {name: None for row in rows for name in row} if name not in _TRL_OWN]
    return {
        "prompts": [submission.prompt for submission in batch],
        "completions": [_completion(submission) for submission in batch],
        "completion_ids": [list(submission.tokens) for submission in batch],
        **{name: [row.get(name) for row in rows] for name in names},
        "trainer_state": None,
        "log_extra": _ignore,
        "log_metric": _ignore,
    }


_TRL_OWN = {"prompt", "completion", "prompts", "completions", "completion_ids"}


def _completion(submission: Submission) -> str | list[dict[str, str]]:
    """Return the response as TRL gives it: a turn of the assistant where the prompt is a conversation."""
    if isinstance(submission.prompt, str):
        return submission.text
    return [{"role": "assistant", "content": submission.text}]


def _ignore(name: str, value: Any) -> None:
    """Take what a function would log, and drop it."""


def _marks(returned: Any, count: int) -> list[Mark]:
    if isinstance(returned, str | bytes | Mapping) or not hasattr(returned, "__iter__"):
        raise RewardError(f"it returned {_short(returned)}; expected a list with one reward a response")
    rewards = list(returned)
    if len(rewards) != count:
        raise RewardError(f"it returned {len(rewards)} rewards for {count} responses; expected one a response")
    return [_mark(reward, row) for row, reward in enumerate(rewards)]


def _verl_arguments(submission: Submission) -> dict[str, Any]:
    """Return what verl passes; the ground truth is the answer, or that of a row in verl's own layout."""
    columns, model = submission.columns, submission.columns.get("reward_model")
    in_row = model.get("ground_truth") if isinstance(model, Mapping) else None
    return {
        "data_source": columns.get("data_source"),
        "solution_str": submission.text,
        "ground_truth": submission.answer if in_row is None else in_row,
        "extra_info": columns.get("extra_info"),
    }


def _verl_mark(returned: Any) -> Mark:
    if isinstance(returned, Mapping):
        if "score" not in returned:
            raise RewardError(f"it returned {_short(returned)}; expected a number, or a mapping with 'score'", 0)
        returned = returned["score"]
    return _mark(returned, 0)


def _mark(reward: Any, row: int) -> Mark:
    """Return the mark of one reward: a number, also as NumPy and torch hold one, or None."""
    if reward is None:
        return None, "unparseable"
    try:
        if isinstance(reward, str | bytes):
            raise TypeError
        score = float(reward)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        score = math.nan
    if not math.isfinite(score):
        raise RewardError(f"{_short(reward)} is no reward; expected a finite number, or None for no score", row)
    return score, "right" if score >= 1 else "wrong"


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:60]}...{shown[-10:]}"
