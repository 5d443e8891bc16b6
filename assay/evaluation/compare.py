"""Two points of a run on the same problems: what changed, and whether that is more than noise.

A matched control is compared in the same way: the control is the first point, the trained policy the second.
"""

from __future__ import annotations

import math
from typing import Literal

from assay.core.clustered import clustered_mean
from assay.core.paired import mcnemar, paired_score, sign_flip
from assay.errors import InputError
from assay.evaluation.answers import Record, mean

Basis = Literal["sampled", "greedy"]


def compare_points(before: Record, after: Record, *, seed: int = 0) -> Record:
    """Return how a second point differs from a first, paired by problem.

    The one difference that the verdict speaks of is of sampled answers where both points have some, of greedy ones
    otherwise. Intervals take the problems as a sample of a population, and the weights of both points as given: they
    do not show what another training seed would have done. The p-values test that swapping the two points on a problem
    changes nothing; they say nothing of size, and can disagree with the interval at its edge.

    Args:
        before: a record of :func:`assay.evaluation.answers.point_record`, or the same read back from JSON.
        after: another, of the same problems.
        seed: of the sign-flip test, where that is too large to be exact.

    Returns:
        ``basis``, ``difference``, ``interval``, ``excludes_zero``, ``greedy`` (``b``: problems right only before,
        ``c``: only after, ``mcnemar_p``, ``difference``, ``interval``) and ``sampled`` (``difference``, ``interval``,
        ``interval_kind``, ``permutation_p``), each None where a point lacks it, and ``words``.

    Raises:
        InputError: the problems or the levels differ, or no kind of answer is in both.
    """
    pairs = {basis: paired_rows(before, after, basis) for basis in shared_bases(before, after)}
    level = before["level"]
    greedy = _greedy(pairs["greedy"], level) if "greedy" in pairs else None
    sampled = _sampled(pairs["sampled"], level, seed) if "sampled" in pairs else None
    leading = sampled or greedy
    assert leading is not None
    low, high = leading["interval"]
    return {
        "basis": "sampled" if sampled else "greedy",
        "difference": leading["difference"],
        "interval": leading["interval"],
        "excludes_zero": low > 0 or high < 0,
        "greedy": greedy,
        "sampled": sampled,
        "words": verdict(leading["difference"], low, high),
    }


def shared_bases(before: Record, after: Record) -> list[Basis]:
    """Return the kinds of answer that both points have, the sampled ones first.

    Raises:
        InputError: the problems or the levels differ, or there is no such kind.
    """
    first, second = ({row["problem"] for row in point["per_problem"]} for point in (before, after))
    if first != second:
        odd = min(first ^ second)
        raise InputError(
            f"problem {odd} is in one point and not in the other ({len(first)} and {len(second)} problems): "
            "evaluate both on the same problems"
        )
    if before["level"] != after["level"]:
        raise InputError(f"levels {before['level']} and {after['level']}: two points need intervals of one level")
    every: tuple[Basis, ...] = ("sampled", "greedy")
    bases = [basis for basis in every if before[basis] is not None and after[basis] is not None]
    if not bases:
        raise InputError("one point has only greedy and the other only sampled answers: evaluate both in one way")
    return bases


def paired_rows(before: Record, after: Record, basis: Basis) -> list[tuple[Record, Record]]:
    """Return the two counts of each problem, matched by its number and not by its place."""
    second = {row["problem"]: row[basis] for row in after["per_problem"]}
    return [(row[basis], second[row["problem"]]) for row in before["per_problem"]]


def paired_difference(pairs: list[tuple[Record, Record]], level: float) -> tuple[float, list[float], str]:
    """Return the mean difference, its interval and the interval's kind.

    With one answer a problem at both points the interval is the paired score interval, otherwise clustered by problem.
    """
    units, common = _units(pairs)
    differences = [unit / common for unit in units]
    if common == 1:
        ends = paired_score(units.count(1), units.count(-1), len(units), level=level)
        return mean(differences), list(ends), "paired score"
    ends = clustered_mean(differences, low=-1.0, high=1.0, level=level)
    return mean(differences), list(ends), "clustered by problem"


def verdict(difference: float, low: float, high: float) -> str:
    """Return a difference and its interval as one short sentence."""
    word = "higher" if low > 0 else "lower" if high < 0 else "inside noise"
    return f"{word}: {signed(difference)} ({number(low)} to {number(high)})"


def number(value: float) -> str:
    """Return a number to two decimals, with a true minus and no sign on zero."""
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "\N{MINUS SIGN}")


def signed(value: float) -> str:
    """Return a number as :func:`number` does, with a plus where it is above zero."""
    return f"+{number(value)}" if round(value, 2) > 0 else number(value)


def _greedy(pairs: list[tuple[Record, Record]], level: float) -> Record:
    lost = sum(first["right"] > second["right"] for first, second in pairs)
    gained = sum(first["right"] < second["right"] for first, second in pairs)
    difference, interval, _ = paired_difference(pairs, level)
    return {"b": lost, "c": gained, "mcnemar_p": mcnemar(gained, lost), "difference": difference, "interval": interval}


def _sampled(pairs: list[tuple[Record, Record]], level: float, seed: int) -> Record:
    difference, interval, kind = paired_difference(pairs, level)
    return {
        "difference": difference,
        "interval": interval,
        "interval_kind": kind,
        "permutation_p": sign_flip(_units(pairs)[0], seed=seed),
    }


def _units(pairs: list[tuple[Record, Record]]) -> tuple[list[int], int]:
    """Return each problem's difference as a whole number of units, and how many units make 1."""
    common = math.lcm(*(row["of"] for pair in pairs for row in pair))
    rights = [[row["right"] * (common // row["of"]) for row in pair] for pair in pairs]
    return [second - first for first, second in rights], common
