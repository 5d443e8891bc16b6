"""I2: the same rows give the same update, however they are split, spread, padded or packed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.check import (
    TOLERANCE,
    Check,
    SubjectError,
    answers,
    derivative,
    foreign,
    relative_gap,
    verdict_of,
)
from assay.audit.invariants.findings import few
from assay.audit.invariants.layouts import Layout, MicroBatch, Rows, Window, example_rows, lay_out, layouts, one_batch
from assay.audit.invariants.readings import numbers_of
from assay.audit.precision import Precisions, tolerance_for

Update = Callable[[Window], Tensor]
"""Makes one optimiser step. It returns the scalar whose gradient is applied, or that gradient itself."""
Step = Callable[[MicroBatch, Window], Tensor]
"""Returns what ``backward`` is called on for one micro-batch."""

REMEDIES = {
    "one batch": "make the weights those of the formula that the name stands for, its scale included",
    "micro-batches": "divide by a count of the whole window (tokens or sequences over all micro-batches and ranks), "
    "not by a micro-batch's count nor by the number of micro-batches",
    "ranks": "divide by the count over all ranks, and multiply by the number of ranks where gradients are averaged",
    "order": "weigh a row by what it is, not by where it stands",
    "window": "divide by what the window holds, not by the configured number of micro-batches",
    "rollout": "divide by the count of the rows of this step, not of the rollout they come from",
    "padding": "divide by a constant length or by a count of unmasked tokens, not by the padded width",
    "packing": "take sums over sequences by their number, not over rows of the tensor",
}


def accumulated(step: Step) -> Update:
    """Return the update of a trainer that adds up the micro-batches' gradients and averages over ranks.

    Args:
        step: returns the loss of one micro-batch, already scaled as the trainer scales it before ``backward``.
    """

    def update(window: Window) -> Tensor:
        totals = [torch.stack([step(micro, window) for micro in rank]).sum() for rank in window.ranks]
        return torch.stack(totals).mean()

    return update


@answers("I2")
def partition(
    update: Update,
    *,
    rows: Rows | None = None,
    ways: Sequence[Layout] | None = None,
    packed: bool = False,
    declared: Tensor | None = None,
    tolerance: float = TOLERANCE,
) -> Check:
    """Check that an update does not depend on how its rows are laid out.

    Args:
        update: makes one step from a window; :func:`accumulated` makes it from a loss for each micro-batch.
        rows: what every layout must give one gradient for; None takes
            :func:`assay.audit.invariants.layouts.example_rows`.
        ways: layouts to try; None takes all of :func:`assay.audit.invariants.layouts.layouts`.
        packed: whether these hold packed rows too; for a trainer that packs, since no other needs to tell them apart.
        declared: the gradient by the formula that the reduction's name stands for, scale included: by ``logp``,
            ``[N, T]``, where ``update`` returns a scalar, in its own shape otherwise. None compares with one batch.
        tolerance: largest relative difference that still agrees, where the update computes in float64.
    """
    rows = rows or example_rows()
    whole = one_batch(rows)
    with Precisions() as seen:
        base = _gradient(update, lay_out(whole, rows, leaf := _leaf(rows)), leaf)
    _must_be_usable(update, base, whole, rows, declared)
    expected, name = (base, "in one batch") if declared is None else (declared.double(), "declared")
    tried = [*([] if declared is None else [whole]), *(layouts(rows, packed=packed) if ways is None else ways)]
    if not tried:
        raise SubjectError("there is no layout to try")
    tolerance, why = tolerance_for(seen.coarsest, tolerance, "the same numbers are summed in another order")
    error, findings = _compared(update, tried, rows, expected, name, tolerance)
    unpacked = "" if any(way.packed for way in tried) else ", packing not tried"
    return verdict_of(
        "I2",
        f"the gradient of {len(rows.adv)} rows in every layout against the one {name}",
        few(findings.values()),
        error=error,
        tolerance=tolerance,
        why=why,
        exactness=f"{len(tried)} layouts{unpacked}",
        remedy=REMEDIES.get(next(iter(findings), ""), ""),
    )


def _compared(
    update: Update, ways: Sequence[Layout], rows: Rows, expected: Tensor, name: str, tolerance: float
) -> tuple[float, dict[str, str]]:
    """Return the largest relative difference, and the first witness of each axis that shows one."""
    findings: dict[str, str] = {}
    error = 0.0
    for way in ways:
        leaf = _leaf(rows)
        made = _gradient(update, lay_out(way, rows, leaf), leaf)
        if made.shape != expected.shape:
            raise SubjectError(f"a gradient of shape {tuple(made.shape)}, {name} {tuple(expected.shape)}")
        gap = relative_gap(made, expected)
        error = max(error, gap)
        if not gap <= tolerance:
            findings.setdefault(way.axis, f"{way}: {_difference(made, expected, name, rows)}")
    return error, findings


def _must_be_usable(update: Update, base: Tensor, whole: Layout, rows: Rows, declared: Tensor | None) -> None:
    """Raise where the update of one batch, or what was declared, cannot tell layouts apart."""
    if not bool(base.isfinite().all()) or not bool(base.any()):
        raise SubjectError("the update of one batch is zero or not finite, there is nothing to compare with")
    if declared is not None and not bool(declared.isfinite().all()):
        raise SubjectError("the declared gradient is not finite, nothing agrees with it")
    leaf = (other := _other(rows)).logp.clone().requires_grad_()
    window = replace(lay_out(whole, other, leaf), rows=rows)
    if torch.equal(_gradient(update, window, leaf), base):
        raise SubjectError(
            "the update is the same for other log-probabilities, advantages and masks in its micro-batches: it is not "
            "made from them"
        )


def _other(rows: Rows) -> Rows:
    """Return rows with other log-probabilities and advantages, and one trained token less."""
    mask = rows.mask.clone()
    mask[tuple(mask.nonzero()[0])] = False
    return replace(rows, logp=rows.logp - 0.1 * rows.logp.sin().abs(), adv=0.5 - 2 * rows.adv, mask=mask)


def _leaf(rows: Rows) -> Float[Tensor, "N T"]:
    return rows.logp.clone().requires_grad_()


def _gradient(update: Update, window: Window, leaf: Float[Tensor, "N T"]) -> Tensor:
    """Return the update that a window gives."""
    value = numbers_of("the update", foreign("the update", update, window))
    if not value.requires_grad and value.ndim:
        return value
    if not value.requires_grad:
        raise SubjectError("the update has no gradient: it does not depend on logp, or detaches it")
    if value.numel() != 1:
        raise SubjectError(f"the update returned {tuple(value.shape)} with gradient; only a scalar can be applied")
    (made,) = derivative("the update", value, (leaf,))
    if made is None:
        raise SubjectError("the update has no gradient: it does not depend on logp, or detaches it")
    return made.double()


def _difference(made: Float[Tensor, " *shape"], expected: Float[Tensor, " *shape"], name: str, rows: Rows) -> str:
    """Return the worst entry with both values, and the common factor where there is one."""
    gap = (made - expected).abs().nan_to_num(nan=float("inf"))
    index = tuple(int(place) for place in torch.unravel_index(gap.argmax(), gap.shape))
    place = f"row {index[0]}, token {index[1]}" if made.shape == rows.logp.shape else f"entry {index}"
    line = f"the gradient at {place} is {float(made[index]):.6g}, {name} {float(expected[index]):.6g}"
    moved = expected != 0
    ratio = made[moved] / expected[moved]
    if bool(moved.any()) and not bool(made[~moved].any()) and float((ratio - ratio[0]).abs().max()) < TOLERANCE:
        line += f" (every entry is {float(ratio[0]):.6g} times as large)"
    return line
