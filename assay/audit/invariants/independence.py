"""I3: no row sees another one, its padding or its pack."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from assay.audit.check import TOLERANCE, Check, SubjectError, answers, foreign, relative_gap, verdict_of


@answers("I3")
def rows_are_independent(
    score: Callable[[list[Tensor]], list[Tensor]],
    rows: Sequence[Int[Tensor, " _"]] | None = None,
    *,
    tolerance: float = TOLERANCE,
) -> Check:
    """Check that a row's log-probabilities do not depend on its neighbours, on padding or on packing.

    Each row is scored alone, then beside every other one before and after it, and in the whole batch in both orders.

    Args:
        score: given rows of tokens of unequal lengths, pads or packs them itself, and returns a tensor of
            log-probabilities for each.
        rows: None takes four rows of two to five tokens in ``[1, 8)``.
        tolerance: largest relative difference that still agrees.
    """
    rows = [torch.tensor(row) for row in ([3, 1], [2, 5, 4, 1, 6], [7, 4, 2], [5, 5, 1, 3])] if rows is None else rows
    alone = [_scores(score, [row])[0] for row in rows]
    if not all(bool(made.isfinite().all()) for made in alone):
        raise SubjectError("a row scored alone has log-probabilities that are not finite")
    count = range(len(rows))
    batches = [[i, j] for i in count for j in count if i != j] + [list(count), list(reversed(count))]
    findings, error = [], 0.0
    for members in batches:
        for row, made in zip(members, _scores(score, [rows[member] for member in members]), strict=True):
            gap, where = _difference(made, alone[row])
            error = max(error, gap)
            if gap > tolerance:
                findings.append(f"row {row} in a batch of rows {members}: {where}")
    return verdict_of(
        "I3",
        "each row's log-probabilities in a batch against the same row alone",
        findings[:5],
        error=error,
        tolerance=tolerance,
        why="a row's numbers are the same in every batch",
        exactness=f"{len(batches)} batches of {len(rows)} rows",
        remedy="mask attention at padding and across the rows of a pack, and count positions from each row's start",
    )


def _difference(made: Tensor, alone: Tensor) -> tuple[float, str]:
    """Return the largest relative difference, and where it is with both values."""
    if made.shape != alone.shape:
        raise SubjectError(f"the scorer returned {tuple(made.shape)} for a row that alone has {tuple(alone.shape)}")
    at = int((made - alone).abs().nan_to_num(nan=math.inf).argmax())
    return relative_gap(made, alone), f"log-probability {at} is {float(made[at]):.6g}, alone {float(alone[at]):.6g}"


def _scores(score: Callable[[list[Tensor]], list[Tensor]], rows: list[Tensor]) -> list[Tensor]:
    made = foreign("the scorer", score, [row.clone() for row in rows])
    if not isinstance(made, list | tuple) or len(made) != len(rows) or not all(isinstance(row, Tensor) for row in made):
        raise SubjectError(
            f"the scorer returned {type(made).__name__}; it must return a tensor for each of {len(rows)} rows"
        )
    return [row.detach() for row in made]
