"""I3: no row sees another one, its padding or its pack."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from assay.audit.check import TOLERANCE, Check, SubjectError, answers, foreign, relative_gap, verdict_of
from assay.audit.invariants.findings import few, told_apart
from assay.audit.invariants.readings import numbers_of
from assay.audit.precision import Precisions, tolerance_for


@answers("I3")
def rows_are_independent(
    score: Callable[[list[Tensor]], Any],
    rows: Sequence[Int[Tensor, " _"]] | None = None,
    *,
    tolerance: float = TOLERANCE,
) -> Check:
    """Check that a row's log-probabilities do not depend on its neighbours, on padding or on packing.

    Each row is scored alone, then beside every other one before and after it, and in the whole batch in both orders.

    Args:
        score: given rows of tokens of unequal lengths, pads or packs them itself, and returns a tensor of
            log-probabilities for each: as many as it has tokens, one fewer, or one number for the row.
        rows: at least two. None takes four rows of two to five tokens in ``[1, 8)``.
        tolerance: largest relative difference that still agrees, where the scorer computes in float64.
    """
    rows = [torch.tensor(row) for row in ([3, 1], [2, 5, 4, 1, 6], [7, 4, 2], [5, 5, 1, 3])] if rows is None else rows
    if len(rows) < 2:
        raise SubjectError(f"{len(rows)} rows: at least two are needed to see one in another's scores")
    with Precisions() as seen:
        alone = [_scores(score, [row], seen)[0] for row in rows]
    _must_tell_something(rows, alone)
    tolerance, why = tolerance_for(seen.coarsest, tolerance, "a row's numbers are the same in every batch")
    count = range(len(rows))
    batches = [[i, j] for i in count for j in count if i != j] + [list(count), list(reversed(count))]
    findings, error = [], 0.0
    for members in batches:
        made = _scores(score, [rows[member] for member in members], Precisions())
        for row, own in zip(members, made, strict=True):
            gap = relative_gap(own, alone[row])
            error = max(error, gap)
            if not gap <= tolerance:
                findings.append(f"row {row} in a batch of rows {members}: {_difference(own, alone[row])}")
    return verdict_of(
        "I3",
        "each row's log-probabilities in a batch against the same row alone",
        few(findings),
        error=error,
        tolerance=tolerance,
        why=why,
        exactness=f"{len(batches)} batches of {len(rows)} rows",
        remedy="mask attention at padding and across the rows of a pack, and count positions from each row's start",
    )


def _must_tell_something(rows: Sequence[Int[Tensor, " _"]], alone: list[Tensor]) -> None:
    """Raise where the scores of lone rows are no scores of their tokens, or what a batch changes could not show."""
    if not all(bool(made.isfinite().all()) for made in alone):
        raise SubjectError("a row scored alone has log-probabilities that are not finite")
    missing = {len(row) - len(made) if made.ndim else None for row, made in zip(rows, alone, strict=True)}
    if len(missing) > 1:
        shapes = ", ".join(f"{tuple(made.shape)} for {len(row)} tokens" for row, made in zip(rows, alone, strict=True))
        raise SubjectError(f"the scorer does not return a log-probability for each token: {shapes}")
    if len({number for made in alone for number in made.flatten().tolist()}) < 2:
        raise SubjectError("the scorer gives every row and token one number, or none: no row could show in another")


def _difference(made: Tensor, alone: Tensor) -> str:
    """Return where two rows of log-probabilities differ most, with both values."""
    if made.shape != alone.shape:
        return f"log-probabilities of shape {tuple(made.shape)}, alone {tuple(alone.shape)}"
    at = int((made - alone).abs().nan_to_num(nan=math.inf).argmax())
    one, other = told_apart(float(made.flatten()[at]), float(alone.flatten()[at]))
    return f"log-probability {at} is {one}, alone {other}"


def _scores(score: Callable[[list[Tensor]], Any], rows: list[Tensor], seen: Precisions) -> list[Tensor]:
    made = foreign("the scorer", score, [row.clone() for row in rows])
    if not isinstance(made, list | tuple) or len(made) != len(rows):
        raise SubjectError(
            f"the scorer returned {type(made).__name__}; it must return a tensor for each of {len(rows)} rows"
        )
    read = [numbers_of("the scorer", row).detach() for row in made]
    for row in made:
        seen.see(row)
    return read
