"""I3: what stands under the mask, how far a batch is padded and wholly masked rows change nothing."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from assay.audit.check import TOLERANCE, Check, SubjectError, answers, foreign, relative_gap, verdict_of
from assay.audit.invariants.masked_cases import SELECT, example_case, variants

_UNTRAINED = "select with the mask what the loss sums"


@answers("I3")
def masked_inert(
    function: Callable[..., Tensor],
    case: Mapping[str, Tensor] | None = None,
    mask: Bool[Tensor, "B T"] | None = None,
    *,
    by: str | None = None,
    fill: Mapping[str, int | float] | None = None,
    left: bool = True,
    close_up: bool = True,
    tolerance: float = TOLERANCE,
) -> Check:
    """Check that masked positions change nothing.

    One at a time, every floating argument gets other values under the mask, NaN and infinity among them; a wholly
    masked row gets another finite value in arguments ``[B]``. Then the batch gets more padding on either side, loses
    its wholly masked rows, and last loses every masked position.

    Args:
        function: called with those arguments of the case that it names, or all where it takes any; returns a tensor
            that is ``[B, T, ...]``, ``[B]`` or a scalar, and is compared where the mask is set.
        case: arguments. The floating ones that are ``[B, T, ...]`` or ``[B]`` are data, but for ``"mask"``. None
            takes :func:`assay.audit.invariants.masked_cases.example_case`.
        mask: the positions that count. None takes ``case["mask"]``.
        by: the argument to differentiate by. The function then returns a scalar loss; its gradient is compared too,
            and must be zero under the mask.
        fill: what padding holds, by argument, where it is not zero.
        left: whether padding on the left is tried. Not for functions that are documented to take right padding.
        close_up: whether masked positions inside a row are taken out. Not for functions of time, such as discounted
            returns.
        tolerance: largest relative difference that still agrees.
    """
    given, counts = _usable(function, example_case() if case is None else case, mask, by)
    base = _outcome(function, given, counts, by)
    if not all(bool(made.isfinite().all()) for made in base.counted.values()):
        raise SubjectError("the function returns what is not finite for a batch of ordinary numbers")
    findings, error, tried = {}, 0.0, 0
    if by is not None and bool(base.masked.any()):
        findings[_UNTRAINED] = _trained(base.masked, counts, by)
    for variant in variants(given, counts, fill=fill or {}, left=left, close_up=close_up):
        tried += 1
        try:
            gap, where = _difference(_outcome(function, variant.case, variant.mask, by), base, counts)
        except SubjectError as failure:
            if variant.remedy != SELECT:
                raise
            gap, where = math.inf, str(failure)
        error = max(error, gap)
        if gap > tolerance:
            findings.setdefault(variant.remedy, f"with {variant.name}: {where}")
    return verdict_of(
        "I3",
        "outputs where the mask is set, whatever stands where it is not",
        tuple(findings.values()),
        error=error,
        tolerance=tolerance,
        why="the numbers that count are the same in every variant",
        exactness=f"{tried} variants of {len(counts)} rows with {int((~counts).sum())} masked positions",
        remedy=next(iter(findings), ""),
    )


@dataclass(frozen=True)
class _Outcome:
    """What a function returned where the mask is set, by name, and its gradient where it is not."""

    counted: dict[str, Tensor]
    masked: Tensor


def _usable(
    function: Callable[..., Tensor], case: Mapping[str, Tensor], mask: Bool[Tensor, "B T"] | None, by: str | None
) -> tuple[dict[str, Tensor], Bool[Tensor, "B T"]]:
    """Return the arguments of the case that a function asks for, and the positions that count."""
    if mask is None and "mask" not in case:
        raise SubjectError("the case has no mask: give one")
    counts = case["mask"] != 0 if mask is None else mask
    if not bool(counts.any()):
        raise SubjectError("the mask is zero everywhere: no output counts")
    parameters = foreign("reading the function's signature", inspect.signature, function).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    missing = [p.name for p in named if p.default is p.empty and p.name not in case]
    if missing:
        raise SubjectError(f"the function asks for {missing[0]!r}; the case has {', '.join(case)}")
    asked = set(case) if any(p.kind is p.VAR_KEYWORD for p in parameters) else {p.name for p in named}
    given = {name: value for name, value in case.items() if name in asked}
    if by is not None and by not in given:
        raise SubjectError(f"the function does not ask for {by!r}: there is nothing to differentiate by")
    return given, counts


def _outcome(
    function: Callable[..., Tensor], case: dict[str, Tensor], mask: Bool[Tensor, "R W"], by: str | None
) -> _Outcome:
    """Call the function and return what must not depend on masked positions, in the order of the rows."""
    given = {name: value.clone() for name, value in case.items()}
    if by is not None:
        given[by].requires_grad_()
    value = foreign("the function", function, **given)
    if not isinstance(value, Tensor):
        raise SubjectError(f"the function returned {type(value).__name__}; it must return a tensor")
    if by is None:
        return _Outcome({"output": _counted(value.detach(), mask)}, torch.zeros(0))
    if value.numel() != 1 or not value.requires_grad:
        raise SubjectError(f"the loss returned {tuple(value.shape)}; it must return one scalar that depends on {by}")
    made: Tensor | None = torch.autograd.grad(value.sum(), given[by], allow_unused=True)[0]
    if made is None:
        raise SubjectError(f"the loss does not depend on {by}")
    return _Outcome({"gradient": made[mask], "loss": value.detach().sum()}, made[~mask])


def _counted(value: Tensor, mask: Bool[Tensor, "R W"]) -> Tensor:
    """Return the output at the positions, or rows, that count."""
    if value.shape[:2] == mask.shape:
        return value[mask]
    if value.shape[:1] == mask.shape[:1]:
        return value[mask.any(1)]
    if value.numel() == 1:
        return value.sum()
    raise SubjectError(f"the function returned {tuple(value.shape)} for a batch of {tuple(mask.shape)}")


def _difference(made: _Outcome, base: _Outcome, mask: Bool[Tensor, "B T"]) -> tuple[float, str]:
    """Return the largest relative difference, and where it is with both values."""
    gaps = {name: relative_gap(made.counted[name], expected) for name, expected in base.counted.items()}
    name = max(gaps, key=lambda name: gaps[name])
    if gaps[name] == 0.0 and bool(made.masked.any()) and not bool(base.masked.any()):
        return math.inf, f"the gradient at a masked position is {float(made.masked[made.masked != 0][0]):.6g}, not 0"
    value, expected = made.counted[name], base.counted[name]
    at = int((value - expected).abs().nan_to_num(nan=math.inf).argmax())
    numbers = f"{float(value.reshape(-1)[at]):.6g}, without {float(expected.reshape(-1)[at]):.6g}"
    return gaps[name], f"{name}{_place(at, expected, mask)} is {numbers}"


def _place(at: int, counted: Tensor, mask: Bool[Tensor, "B T"]) -> str:
    """Return in words where, in the given batch, an entry of what was counted stands."""
    if counted.ndim == 0:
        return ""
    entry = at // counted[0].numel()
    if len(counted) == int(mask.sum()):
        row, column = mask.nonzero()[entry].tolist()
        return f" at row {row}, position {column}"
    return f" of row {int(mask.any(1).nonzero()[entry])}"


def _trained(masked: Tensor, mask: Bool[Tensor, "B T"], by: str) -> str:
    """Return the first masked position that has a gradient."""
    entry = int(masked.reshape(len(masked), -1).any(1).nonzero()[0])
    row, column = (~mask).nonzero()[entry].tolist()
    value = float(masked[entry].reshape(-1)[masked[entry].reshape(-1) != 0][0])
    return f"row {row}, position {column} is masked, and the gradient by {by} there is {value:.6g}, not 0"
