"""I14: does each row get its own score when a batch is scored, also when one of the rows cannot be?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from assay.audit.check import TOLERANCE, Check, SubjectError, answers, foreign, verdict_of
from assay.audit.invariants.findings import few
from assay.audit.invariants.verifiers import score_of

WHAT = "the scoring function"
Scores = list[float | None]


@answers("I14")
def row_alignment(
    score: Callable[[list[Any]], Any],
    rows: Sequence[Any],
    *,
    failing: Sequence[Any] | None = None,
    tolerance: float = TOLERANCE,
) -> Check:
    """Check that a batch gets one score a row, in the order of its rows.

    Each ordinary row is scored alone first; batches of them, forwards, backwards, rotated, and with a failing row
    once or twice in every place, must give each row the same score again. Where a row's score depends on the other
    rows by design, this is not the check.

    Args:
        score: from a list of rows to their scores; each a number, None or NaN for none, or what a grader returns.
        rows: ordinary rows, at least two of them with different scores.
        failing: rows that cannot be scored; what they get is their own affair, as long as it is one score each. None
            takes an empty text where rows are texts, and otherwise nothing: then only the order is checked.
        tolerance: relative; larger where a model scores, whose numbers may depend on the batch.
    """
    texts = all(isinstance(row, str) for row in rows)
    bad_rows = list(failing) if failing is not None else [""] if texts else []
    alone = [_scores(score, [row]) for row in rows]
    strange = [made for made in alone if len(made) != 1]
    if strange:
        raise SubjectError(f"{WHAT} returned {len(strange[0])} scores for one ordinary row")
    expected = [made[0] for made in alone]
    if len(set(expected)) < 2:
        raise SubjectError("all rows score the same: give at least two whose scores differ, or no order can be seen")
    batches = list(_batches(len(rows), bad_rows))
    found = [_finding(score, rows, expected, batch, tolerance) for batch in batches]
    return verdict_of(
        "I14",
        "one score a row, in the order of the rows"
        + (", also when one of them cannot be scored" if bad_rows else "; no row that cannot be scored was given"),
        few(found),
        tolerance=tolerance,
        exactness=f"{len(rows)} rows alone, {len(batches)} batches",
        remedy="append exactly one score a row, outside whatever may raise",
    )


Entry = tuple[int | None, Any]
"""Place of an ordinary row, None for a failing one; and the failing row itself."""


def _batches(rows: int, failing: Sequence[Any]) -> Iterator[list[Entry]]:
    """Yield the batches, the smallest witnesses first."""
    plain: list[Entry] = [(place, None) for place in range(rows)]
    for bad in failing:
        yield [(None, bad)]
    yield plain
    yield plain[::-1]
    yield plain[1:] + plain[:1]
    for bad in failing:
        for place in range(rows + 1):
            yield [*plain[:place], (None, bad), *plain[place:]]
            yield [*plain[:place], (None, bad), (None, bad), *plain[place:]]


def _finding(
    score: Callable[[list[Any]], Any], rows: Sequence[Any], expected: Scores, batch: list[Entry], tolerance: float
) -> str:
    """Return what is wrong with the scores of a batch, or nothing."""
    given = [bad if place is None else rows[place] for place, bad in batch]
    try:
        made = _scores(score, given)
    except SubjectError as error:
        return f"{given!r}: no row has a score, {error}"
    for row, ((place, _), one) in enumerate(zip(batch, made, strict=False)):
        if place is not None and not _same(one, expected[place], tolerance):
            return f"{given!r}: row {row} scores {one}, and {expected[place]} alone; {len(made)} scores in all"
    return "" if len(made) == len(given) else f"{given!r}: scores {len(made)}, rows {len(given)}"


def _same(one: float | None, other: float | None, tolerance: float) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)


def _scores(score: Callable[[list[Any]], Any], batch: list[Any]) -> Scores:
    made = foreign(WHAT, score, list(batch))
    arrays = isinstance(made, Tensor | np.ndarray)
    values = foreign(f"reading what {WHAT} returned", made.tolist) if arrays else made
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise SubjectError(f"{WHAT} returned {type(made).__name__}; it must return a list of one score a row")
    return [None if isinstance(one, float) and math.isnan(one) else score_of(one) for one in values]
