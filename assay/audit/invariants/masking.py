"""I3: what stands under the mask, how far a batch is padded and what wholly masked rows hold change nothing."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxtyping import Bool
from torch import Tensor

from assay.audit.check import TOLERANCE, Check, SubjectError, answers, relative_gap, verdict_of
from assay.audit.invariants.findings import few
from assay.audit.invariants.masked_cases import OWN_MASK, SELECT, Variant, example_case, moved, taken_out, variants
from assay.audit.invariants.masked_outcomes import Arguments, Outcome, difference, outcome, trained, usable, worst
from assay.audit.precision import Precisions, tolerance_for

UNTRAINED = "select with the mask what the loss sums"
NO_TOKEN = "divide by a count of at least 1, so that a row without a token is 0 and not NaN"
SURFACE = "replace NaN under the mask alone: one that counts must stop the run"
AS_DECLARED = "count under the mask of what the number is named after"

Call = Callable[[Arguments, Bool[Tensor, "R W"]], Outcome]
"""From arguments and their mask to what counts."""


@answers("I3")
def masked_inert(
    function: Callable[..., Any],
    case: Mapping[str, Any] | None = None,
    mask: Tensor | None = None,
    *,
    by: str | None = None,
    declared: Tensor | None = None,
    fill: Mapping[str, int | float] | None = None,
    left: bool = True,
    close_up: bool = True,
    absent: bool = False,
    tolerance: float = TOLERANCE,
) -> Check:
    """Check that masked positions change nothing.

    One at a time, every floating argument gets other values under the mask, NaN and infinity among them, and every
    integer one other numbers that it holds elsewhere; a wholly masked row gets another finite value in arguments
    ``[B]``. Then the batch gets more padding on either side, and last loses every masked position.

    A wholly masked row has no value of its own: its score, its advantage and its tokens reach nothing. It may still
    count as one row whose sum is 0, in a mean over rows or in a group's statistics; whether it does is the formula's
    matter, unless ``absent`` says otherwise. It must not make a finite output NaN.

    With ``by``, a NaN that is not masked must show, in the loss or its gradient.

    Args:
        function: called with those arguments of the case that it names, or all where it takes any; returns a tensor
            that is ``[B, T, ...]``, ``[B]`` or a scalar, and is compared where the mask is set. It is no model:
            masked tokens are context to a model, see :func:`assay.audit.invariants.independence.rows_are_independent`.
        case: arguments. The floating ones that are ``[B, T, ...]`` or ``[B]`` are data, but for ``"mask"``; so are
            integers ``[B, T]``, but for those that hold one value under the mask and nowhere else, which are a mask
            too. None takes :func:`assay.audit.invariants.masked_cases.example_case`.
        mask: the positions that count, ``[B, T]``, where it is not zero. None takes ``case["mask"]``.
        by: the argument to differentiate by. The function then returns a scalar loss; its gradient is compared too,
            and must be zero under the mask.
        declared: what the function returns for the batch as it is, where the rows or positions count. None declares
            nothing.
        fill: what padding holds, by argument, where it is not zero.
        left: whether padding on the left is tried. Not for functions that are documented to take right padding.
        close_up: whether masked positions inside a row are taken out. Not for functions of time, such as discounted
            returns.
        absent: whether a wholly masked row must be missing from every count of rows as well.
        tolerance: largest relative difference that still agrees, where the function computes in float64.
    """
    given, counts = usable(function, example_case() if case is None else case, mask, by)
    call = functools.partial(_call, function, by)
    with Precisions() as seen:
        base = call(given, counts)
    tolerance, why = tolerance_for(seen.coarsest, tolerance, "the numbers that count are the same in every variant")
    if base.finite:
        made = list(variants(given, counts, fill=fill or {}, left=left, close_up=close_up, absent=absent))
        error, findings = _of_finite(call, given, counts, base, made, by, declared, tolerance)
        if not findings:
            _must_depend_on_data(call, given, counts, base, fill or {})
    else:
        error, findings, made = math.inf, _empty_rows_spoil_it(call, given, counts, base), []
    empty = int((~counts.any(1)).sum())
    return verdict_of(
        "I3",
        "outputs where the mask is set, whatever stands where it is not",
        few(findings.values()),
        error=error,
        tolerance=tolerance,
        why=why,
        exactness=f"{len(made)} variants of {len(counts)} rows, {empty} of them wholly masked, with "
        f"{int((~counts).sum())} masked positions",
        remedy=next(iter(findings), ""),
    )


def _call(function: Callable[..., Any], by: str | None, case: Arguments, mask: Bool[Tensor, "R W"]) -> Outcome:
    return outcome(function, case, mask, by)


def _empty_rows_spoil_it(call: Call, given: Arguments, counts: Bool[Tensor, "B T"], base: Outcome) -> dict[str, str]:
    """Return the finding that a wholly masked row makes a finite output something else.

    Raises:
        SubjectError: it is not finite without such rows either, or there are none.
    """
    if not bool(counts.any(1).all()):
        rest = taken_out(given, counts)
        if call(rest.case, rest.mask).finite:
            name = next(name for name, made in base.counted.items() if not bool(made.isfinite().all()))
            value = float(base.counted[name][~base.counted[name].isfinite()].reshape(-1)[0])
            row = int((~counts.any(1)).nonzero()[0])
            return {NO_TOKEN: f"with row {row} wholly masked: {name} is {value:.6g}, without such rows it is finite"}
    raise SubjectError("the function returns what is not finite for a batch of ordinary numbers")


def _must_depend_on_data(
    call: Call, given: Arguments, counts: Bool[Tensor, "B T"], base: Outcome, fill: Mapping[str, int | float]
) -> None:
    """Raise where the function gives the same answer to another batch."""
    others = (difference(call(other.case, other.mask), base, counts) for other in moved(given, counts, fill))
    moves = bool(base.counted["gradient"].any()) if "gradient" in base.counted else any(gap for gap, _ in others)
    if not moves:
        raise SubjectError("the function depends on nothing that is unmasked: there is nothing to compare")


def _of_finite(
    call: Call,
    given: Arguments,
    counts: Bool[Tensor, "B T"],
    base: Outcome,
    made: Sequence[Variant],
    by: str | None,
    declared: Tensor | None,
    tolerance: float,
) -> tuple[float, dict[str, str]]:
    """Return the largest relative difference, and the first witness of each remedy, of the batch and its variants.

    Raises:
        SubjectError: the same batch gives something else when tried again.
    """
    if difference(call(given, counts), base, counts)[0] != 0.0:
        raise SubjectError("the function returns something else when called again: fix its random numbers")
    error, findings = _of_the_batch_alone(call, given, counts, base, by, declared, tolerance)
    largest, shown = _compared(call, made, base, counts, tolerance)
    return max(error, largest), findings | {remedy: line for remedy, line in shown.items() if remedy not in findings}


def _of_the_batch_alone(
    call: Call,
    given: Arguments,
    counts: Bool[Tensor, "B T"],
    base: Outcome,
    by: str | None,
    declared: Tensor | None,
    tolerance: float,
) -> tuple[float, dict[str, str]]:
    """Return what is wrong with the batch as it is, by remedy: the output, a gradient under the mask, a NaN lost."""
    error, findings = 0.0, {}
    if declared is not None:
        made, expected = base.counted["output" if by is None else "loss"], declared.double()
        error = relative_gap(made, expected)
        if not error <= tolerance:
            findings[AS_DECLARED] = f"output{worst(made, expected, counts, 'declared')}"
    if by is not None and bool(base.masked.any()):
        findings[UNTRAINED] = trained(base.masked, counts, by)
    if by is not None and bool(base.counted["gradient"].any()):
        pulls = base.counted["gradient"].reshape(int(counts.sum()), -1).any(1)
        row, column = counts.nonzero()[int(pulls.nonzero()[0])].tolist()
        spoilt = given[by].clone()
        spoilt[row, column] = math.nan
        try:
            hidden = call({**given, by: spoilt}, counts).finite
        except SubjectError:
            hidden = False
        if hidden:
            line = f"with NaN at row {row}, position {column} of {by}, which is not masked: "
            error, findings[SURFACE] = math.inf, line + "the loss and its gradient are finite"
    return error, findings


def _compared(
    call: Call, variants: Iterable[Variant], base: Outcome, counts: Bool[Tensor, "B T"], tolerance: float
) -> tuple[float, dict[str, str]]:
    """Return the largest relative difference, and the first witness of each remedy."""
    findings: dict[str, str] = {}
    error = 0.0
    for variant in variants:
        try:
            gap, where = difference(call(variant.case, variant.mask), base, counts)
        except SubjectError as failure:
            if variant.remedy not in (SELECT, OWN_MASK):
                raise
            gap, where = math.inf, str(failure)
        error = max(error, gap)
        if not gap <= tolerance:
            findings.setdefault(variant.remedy, f"with {variant.name}: {where}")
    return error, findings
