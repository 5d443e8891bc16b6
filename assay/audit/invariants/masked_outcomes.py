"""What a function returns, and pulls, where a mask is set, and how far that is from what it did before."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from assay.audit.check import SubjectError, derivative, foreign, relative_gap
from assay.audit.invariants.findings import told_apart
from assay.audit.invariants.readings import numbers_of

Arguments = dict[str, Any]
"""What a function is called with, by parameter name; what is no tensor is handed over as it is."""


@dataclass(frozen=True)
class Outcome:
    """What a function returned where the mask is set, and its gradient where it is not.

    Attributes:
        counted: in the order of the rows and positions that count; the output, or a loss and its gradient.
        masked: the gradient at masked positions; empty where nothing is differentiated.
    """

    counted: dict[str, Tensor]
    masked: Tensor

    @property
    def finite(self) -> bool:
        """Return whether all that counts is finite."""
        return all(bool(made.isfinite().all()) for made in self.counted.values())


def usable(
    function: Callable[..., Any], case: Mapping[str, Any], mask: Tensor | None, by: str | None
) -> tuple[Arguments, Bool[Tensor, "B T"]]:
    """Return the arguments of the case that a function asks for, and the positions that count.

    Raises:
        SubjectError: there is no mask or nothing under it, or the function asks for what the case has not.
    """
    given_mask = case.get("mask") if mask is None else mask
    if not isinstance(given_mask, Tensor):
        raise SubjectError("the case has no mask: give one")
    if given_mask.ndim != 2:
        raise SubjectError(f"a mask of shape {tuple(given_mask.shape)}; it must be [B, T]")
    counts = given_mask != 0
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
    if by is not None and not _is_data(given[by], counts):
        raise SubjectError(f"{by!r} is no floating tensor [B, T, ...]: nothing can be differentiated by it")
    return given, counts


def _is_data(value: Any, mask: Bool[Tensor, "B T"]) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.shape[:2] == mask.shape


def outcome(function: Callable[..., Any], case: Arguments, mask: Bool[Tensor, "R W"], by: str | None) -> Outcome:
    """Call the function and return what must not depend on masked positions.

    Raises:
        SubjectError: it raises, or returns what it must not.
    """
    given = {name: value.clone() if isinstance(value, Tensor) else value for name, value in case.items()}
    if by is None:
        value = numbers_of("the function", foreign("the function", function, **given))
        return Outcome({"output": _counted(value.detach(), mask)}, torch.zeros(0))
    leaf = given[by].requires_grad_()
    # a view of the leaf, so that the function may write into what it is given
    value = numbers_of("the function", foreign("the function", function, **{**given, by: leaf.view_as(leaf)}))
    if value.numel() != 1 or not value.requires_grad:
        raise SubjectError(f"the loss returned {tuple(value.shape)}; it must return one scalar that depends on {by}")
    (made,) = derivative("the loss", value, (leaf,))
    if made is None:
        raise SubjectError(f"the loss does not depend on {by}")
    return Outcome({"gradient": made[mask], "loss": value.detach().sum()}, made[~mask])


def _counted(value: Tensor, mask: Bool[Tensor, "R W"]) -> Tensor:
    """Return the output at the positions, or rows, that count."""
    if value.shape[:2] == mask.shape:
        return value[mask]
    if value.shape[:1] == mask.shape[:1]:
        return value[mask.any(1)]
    if value.numel() == 1:
        return value.sum()
    raise SubjectError(f"the function returned {tuple(value.shape)} for a batch of {tuple(mask.shape)}")


def difference(made: Outcome, base: Outcome, mask: Bool[Tensor, "B T"]) -> tuple[float, str]:
    """Return the largest relative difference of two outcomes, and where in the given batch it is with both values."""
    gaps = {name: relative_gap(made.counted[name], expected) for name, expected in base.counted.items()}
    name = max(gaps, key=lambda name: round(gaps[name], 12))
    if gaps[name] == 0.0 and bool(made.masked.any()) and not bool(base.masked.any()):
        return math.inf, f"the gradient at a masked position is {float(made.masked[made.masked != 0][0]):.6g}, not 0"
    return gaps[name], f"{name}{worst(made.counted[name], base.counted[name], mask, 'without')}"


def worst(value: Tensor, expected: Tensor, mask: Bool[Tensor, "B T"], other: str) -> str:
    """Return in words where what was counted differs most, with both values; ``other`` names the expected one."""
    if value.shape != expected.shape:
        return f" has shape {tuple(value.shape)}, {other} {tuple(expected.shape)}"
    if not value.numel():
        return " is empty"
    at = int((value - expected).abs().nan_to_num(nan=math.inf).argmax())
    one, two = told_apart(float(value.reshape(-1)[at]), float(expected.reshape(-1)[at]))
    return f"{_place(at, expected, mask)} is {one}, {other} {two}"


def _place(at: int, counted: Tensor, mask: Bool[Tensor, "B T"]) -> str:
    """Return in words where, in the given batch, an entry of what was counted stands."""
    if counted.ndim == 0:
        return ""
    entry = at // counted[0].numel()
    if len(counted) == int(mask.sum()):
        row, column = mask.nonzero()[entry].tolist()
        return f" at row {row}, position {column}"
    return f" of row {int(mask.any(1).nonzero()[entry])}"


def trained(masked: Tensor, mask: Bool[Tensor, "B T"], by: str) -> str:
    """Return in words the first masked position that has a gradient."""
    entry = int(masked.reshape(len(masked), -1).any(1).nonzero()[0])
    row, column = (~mask).nonzero()[entry].tolist()
    value = float(masked[entry].reshape(-1)[masked[entry].reshape(-1) != 0][0])
    return f"row {row}, position {column} is masked, and the gradient by {by} there is {value:.6g}, not 0"
