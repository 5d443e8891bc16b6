"""One point of a run on one split: what its answers to the problems were, counted, with intervals.

A response that could not be scored is not right. It is counted apart, and what the rate would be if every such
response were right is given beside it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from assay.core.attempts import estimate_pass_at_k
from assay.core.clustered import clustered_mean
from assay.core.intervals import exact_binomial, wilson
from assay.errors import InputError
from assay.types import Outcome, Status

LEVEL = 0.95
Record = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """One response as it was graded.

    Attributes:
        outcome: what the grader said.
        truncated: whether the response was cut off at the longest length.
        parsed: whether an answer could be read from it at all; None takes the grader's word, that is whether it
            is right or wrong.

    Raises:
        InputError: the answer is right and could not be read.
    """

    outcome: Outcome
    truncated: bool = False
    parsed: bool | None = None

    def __post_init__(self) -> None:
        if self.right and not self.in_format:
            raise InputError("an answer is right and parsed = False: what is right must count as in format")

    @property
    def right(self) -> bool:
        """Return whether the answer is right."""
        return self.outcome.status == "right"

    @property
    def unscorable(self) -> bool:
        """Return whether the response has no score."""
        return self.outcome.score is None

    @property
    def in_format(self) -> bool:
        """Return whether an answer could be read from the response."""
        return self.outcome.status in ("right", "wrong") if self.parsed is None else self.parsed


def point_record(
    numbers: Sequence[int],
    sampled: Sequence[Sequence[Answer]],
    *,
    greedy: Sequence[Answer] | None = None,
    pass_k: Sequence[int] = (1,),
    level: float = LEVEL,
) -> Record:
    """Return what a point's answers come to, as plain values for JSON.

    Every interval takes the problems as a sample of a population and is about that population's mean. ``greedy`` has
    one answer a problem: Wilson's and the exact binomial interval. ``sampled`` has a rate that weighs problems equally;
    with several samples a problem its interval is clustered by problem, with one it is Wilson's. None of them shows
    the spread between training runs.

    Args:
        numbers: of the problems, distinct.
        sampled: the sampled answers to each, in the same order; no answers at all where nothing was sampled.
        greedy: the greedy answer to each.
        pass_k: the k of each pass@k, from 1 to the fewest samples of a problem.
        level: nominal coverage of the intervals.

    Returns:
        ``level``; ``greedy`` and ``sampled``, each a record or None; ``per_problem``, one record a problem, which is
        all that :func:`assay.evaluation.compare.compare_points` and
        :func:`assay.evaluation.format_share.format_share` read.

    Raises:
        InputError: rows do not match the problems, there is nothing to count, some problems have no samples and
            others have, or a k exceeds the samples.
    """
    _check(numbers, sampled, greedy)
    rows: list[Record] = [
        {"problem": number, "sampled": _tally(answers), "greedy": None if greedy is None else _tally([greedy[at]])}
        for at, (number, answers) in enumerate(zip(numbers, sampled, strict=True))
    ]
    every = [answer for answers in sampled for answer in answers]
    return {
        "level": level,
        "greedy": None if greedy is None else _greedy_record(greedy, level),
        "sampled": _sampled_record([row["sampled"] for row in rows], every, pass_k, level) if every else None,
        "per_problem": rows,
    }


def _check(numbers: Sequence[int], sampled: Sequence[Sequence[Answer]], greedy: Sequence[Answer] | None) -> None:
    if len(set(numbers)) < len(numbers):
        raise InputError(
            f"problem {Counter(numbers).most_common(1)[0][0]} comes twice: a point needs distinct problems"
        )
    rows = {"sampled": len(sampled), "greedy": len(numbers) if greedy is None else len(greedy)}
    for name, count in rows.items():
        if count != len(numbers):
            raise InputError(f"{count} rows of {name} answers to {len(numbers)} problems: need one row a problem")
    empty = [number for number, answers in zip(numbers, sampled, strict=True) if not answers]
    if 0 < len(empty) < len(numbers):
        raise InputError(f"problem {empty[0]} has no sampled answer and others have: need some for each or for none")
    if not numbers or (greedy is None and empty):
        raise InputError(f"{len(numbers)} problems and no answer to count: need at least one greedy or sampled answer")


def _tally(answers: Sequence[Answer]) -> Record | None:
    """Return the counts of one problem's answers; None where there are none."""
    if not answers:
        return None
    counts: Record = {"of": len(answers)}
    counts["right"] = sum(answer.right for answer in answers)
    counts["in_format"] = sum(answer.in_format for answer in answers)
    counts["unscorable"] = sum(answer.unscorable for answer in answers)
    return {**counts, "rate": counts["right"] / counts["of"]}


def _counts(answers: Sequence[Answer]) -> Record:
    """Return the outcomes of answers, and the shares that explain a low rate."""
    statuses = Counter(answer.outcome.status for answer in answers)
    return {
        "outcomes": {status: statuses[status] for status in get_args(Status)},
        "unscorable_share": sum(answer.unscorable for answer in answers) / len(answers),
        "in_format_share": sum(answer.in_format for answer in answers) / len(answers),
        "truncated_share": sum(answer.truncated for answer in answers) / len(answers),
    }


def _greedy_record(answers: Sequence[Answer], level: float) -> Record:
    right, count = sum(answer.right for answer in answers), len(answers)
    return {
        "right": right,
        "of": count,
        "rate": right / count,
        "wilson": list(wilson(right, count, level=level)),
        "exact": list(exact_binomial(right, count, level=level)),
        "rate_if_unscorable_right": sum(answer.right or answer.unscorable for answer in answers) / count,
        **_counts(answers),
    }


def _sampled_record(rows: list[Record], every: list[Answer], pass_k: Sequence[int], level: float) -> Record:
    rates = [row["rate"] for row in rows]
    single = all(row["of"] == 1 for row in rows)
    interval = wilson(int(sum(rates)), len(rows), level=level) if single else clustered_mean(rates, level=level)
    return {
        "samples": len(every),
        "rate": mean(rates),
        "interval": list(interval),
        "interval_kind": "wilson" if single else "clustered by problem",
        "rate_if_unscorable_right": _mean_over(rows, lambda row: (row["right"] + row["unscorable"]) / row["of"]),
        "pass_at_k": {str(k): _pass_record(rows, k, level) for k in pass_k},
        **_counts(every),
    }


def _pass_record(rows: list[Record], k: int, level: float) -> Record:
    estimates = [estimate_pass_at_k(row["right"], row["of"], k) for row in rows]
    return {"rate": mean(estimates), "interval": list(clustered_mean(estimates, level=level))}


def _mean_over(rows: list[Record], value: Callable[[Record], float]) -> float:
    return mean([value(row) for row in rows])


def mean(values: Sequence[float]) -> float:
    """Return the mean, of a sum without rounding: the same in any order."""
    return math.fsum(values) / len(values)
