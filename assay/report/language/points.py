"""Read the records of ``results.json`` that measure a point, compare two, or bound one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.report.language.measured import STATUSES, Answers, Bound, Comparison, FormatShare, Point, Rate
from assay.report.values import real, share, whole

Record = Mapping[str, Any]


def read_point(record: Record) -> Point:
    """Return a point on a split.

    Raises:
        LookupError, TypeError, ValueError: an entry is missing or makes no sense.
    """
    sampled, greedy = record["sampled"], record["greedy"]
    level = real(record["level"])
    if not 0 < level < 1:
        raise ValueError(f"level {level}")
    if sampled is None and greedy is None:
        raise ValueError("a point has neither sampled nor greedy responses")
    return Point(
        level=level,
        problems=len(record["per_problem"]),
        sampled=None if sampled is None else _answers(sampled, sampled["interval"], sampled["pass_at_k"]),
        greedy=None if greedy is None else _answers(greedy, greedy["wilson"], {}),
    )


def read_comparison(record: Record) -> Comparison:
    """Return a comparison of two points; raises as :func:`read_point`."""
    basis, sampled, greedy = record["basis"], record["sampled"], record["greedy"]
    if basis not in ("sampled", "greedy"):
        raise ValueError(f"basis {basis!r}")
    return Comparison(
        basis=basis,
        change=_difference(record["difference"], record["interval"]),
        permutation_p=None if sampled is None else share(sampled["permutation_p"]),
        mcnemar_p=None if greedy is None else share(greedy["mcnemar_p"]),
        lost=0 if greedy is None else whole(greedy["b"]),
        gained=0 if greedy is None else whole(greedy["c"]),
    )


def read_format(record: Record) -> FormatShare:
    """Return what part of a gain is format; raises as :func:`read_point`."""
    shares, rights = record["in_format"], record["accuracy_in_format"]
    first, second = (None if rights[when] is None else share(rights[when]) for when in ("before", "after"))
    return FormatShare(
        gain=_difference(record["gain"], record["interval"]),
        format=_difference(record["format"]["part"], record["format"]["interval"]),
        accuracy=_difference(record["accuracy"]["part"], record["accuracy"]["interval"]),
        in_format=(share(shares["before"]), share(shares["after"])),
        right_in_format=(first, second),
    )


def read_bound(record: Record) -> Bound:
    """Return certified bounds of a mean success; raises as :func:`read_point`."""
    rows = record["per_problem"]
    return Bound(
        low=share(record["low"]),
        high=share(record["high"]),
        problems=len(rows),
        whole=sum(row["complete"] is True for row in rows),
        passes=sum(whole(row["passes"]) for row in rows),
    )


def _answers(record: Record, interval: Any, passes: Record) -> Answers:
    outcomes = {status: whole(record["outcomes"][status]) for status in STATUSES}
    if not sum(outcomes.values()):
        raise ValueError("a point has no responses")
    return Answers(
        success=_rate(record["rate"], interval),
        if_unscorable_right=share(record["rate_if_unscorable_right"]),
        passes={whole(int(k)): _rate(made["rate"], made["interval"]) for k, made in passes.items()},
        outcomes=outcomes,
        in_format=share(record["in_format_share"]),
        truncated=share(record["truncated_share"]),
        unscorable=share(record["unscorable_share"]),
    )


def _rate(value: Any, interval: Any) -> Rate:
    low, high = interval
    return Rate(share(value), share(low), share(high))


def _difference(value: Any, interval: Any) -> Rate:
    """Return a difference of two shares."""
    low, high = interval
    made = Rate(real(value), real(low), real(high))
    if not all(-1 - 1e-6 <= one <= 1 + 1e-6 for one in (made.rate, made.low, made.high)):
        raise ValueError(f"{made} is no difference of two shares")
    return made
