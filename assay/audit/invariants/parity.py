"""I13: do two paths that claim one formula agree, in value and in gradient?

Fused and plain, scalar and vectorised, a trainer and its copy: both are called with the same batches, which differ
in what such paths forget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
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
from assay.audit.invariants.byname import call_by_name
from assay.audit.invariants.findings import few, told_apart
from assay.audit.invariants.parity_cases import Inputs, loss_cases
from assay.audit.invariants.readings import numbers_of
from assay.audit.precision import Precisions, tolerance_for

_BY = "gradient by "
_NONE = torch.zeros(0)


@answers("I13")
def parity(
    first: Callable[..., Any],
    second: Callable[..., Any],
    *,
    cases: Mapping[str, Inputs] | None = None,
    trained: Sequence[str] = ("logp",),
    tolerance: float = TOLERANCE,
) -> Check:
    """Check that two paths return the same, and pull the weights the same way.

    Args:
        first: called by parameter name; returns a number, a tensor, or a tuple, list or mapping of such.
        second: the same; each may ask for less than there is.
        cases: by name; :func:`assay.audit.invariants.parity_cases.loss_cases` unless given.
        trained: arguments that carry the gradient, where a case has them.
        tolerance: relative to the largest entry of what ``first`` returns in that place, or to a thousandth of the
            largest it gives anywhere, where that is more: a sum that cancels to zero leaves rounding. Where a path
            computes in less than float64 it is wider, and relative to the largest anywhere.

    Two paths that are not finite in the same place, or that return the same whatever they are given, could not run.
    """
    tried = loss_cases() if cases is None else cases
    if not tried:
        raise SubjectError("no case: give at least one, or none at all for the usual batches")
    with Precisions() as seen:
        made = {
            name: (
                _outcome("the first path", first, case, trained, seen),
                _outcome("the second path", second, case, trained, seen),
            )
            for name, case in tried.items()
        }
    tolerance, why = tolerance_for(seen.coarsest, tolerance, "the same arithmetic in another order")
    # in float64 a sum that cancels leaves next to nothing; a coarser type leaves its rounding of the largest term
    share = 1e-3 if seen.coarsest is torch.float64 else 1.0
    gaps = [gap for name, (one, two) in made.items() for gap in _compared(name, one, two, share)]
    findings = [gap.witness for gap in gaps if not gap.size <= tolerance]
    ones = {name: one for name, (one, _) in made.items()}
    if not findings:
        _must_tell_something(first, tried, trained, ones, gaps)
    moved = [name for name in trained if any(bool(one.get(_BY + name, _NONE).any()) for one in ones.values())]
    return verdict_of(
        "I13",
        f"value{''.join(f' and {_BY}{name}' for name in moved)} of two paths that claim one formula",
        few(findings),
        error=max((gap.size for gap in gaps), default=0.0),
        tolerance=tolerance,
        why=why,
        exactness=f"{len(tried)} batches: {', '.join(tried)}",
    )


@dataclass(frozen=True)
class _Gap:
    """How far two paths are apart in one part of what they return.

    Attributes:
        size: the largest relative difference, where not both are NaN.
        witness: where it is.
        undefined: where both paths give NaN, or neither gives any finite number; empty where they do not.
    """

    size: float
    witness: str
    undefined: str = ""


def _compared(name: str, one: dict[str, Tensor], two: dict[str, Tensor], share: float) -> Iterator[_Gap]:
    """Compare what two paths gave for one case, part by part; no scale is below a share of the largest entry."""
    if one.keys() != two.keys():
        raise SubjectError(f"the first path returned {', '.join(one)}, the second {', '.join(two)}")
    largest = [part.abs()[part.isfinite()].max() for part in one.values() if part.isfinite().any()]
    floor = torch.stack([*largest, torch.zeros((), dtype=torch.float64)]).max()[None] * share
    for part, expected in one.items():
        made, where = two[part], f"{name}: {part}"
        if made.shape != expected.shape:
            yield _Gap(float("inf"), f"{where} has shape {tuple(expected.shape)} and {tuple(made.shape)}")
            continue
        lost = made.isnan() & expected.isnan()
        nowhere = made.numel() > 0 and not bool((made.isfinite() | expected.isfinite()).any())
        # the floor stands in both, where it is no difference and sets the scale
        size = relative_gap(torch.cat([made[~lost], floor]), torch.cat([expected[~lost], floor]))
        yield _Gap(size, f"{where} {_furthest(expected, made, lost)}", where if nowhere or bool(lost.any()) else "")


def _must_tell_something(
    first: Callable[..., Any],
    cases: Mapping[str, Inputs],
    trained: Sequence[str],
    outcomes: Mapping[str, dict[str, Tensor]],
    gaps: Sequence[_Gap],
) -> None:
    """Raise where two paths agree, and would whatever they compute: where both give NaN, or ignore their arguments."""
    undefined = next((gap.undefined for gap in gaps if gap.undefined), "")
    if undefined:
        raise SubjectError(f"{undefined} is not finite in both paths: give cases on which they are defined")
    alike = [_same(one, next(iter(outcomes.values()))) for one in outcomes.values()]
    name, case = next(iter(cases.items()))
    floats = {key: value for key, value in case.items() if isinstance(value, Tensor) and value.is_floating_point()}
    if not all(alike) or (len(cases) == 1 and not floats):
        return
    other = {**case, **{key: 0.75 * value + 0.1 for key, value in floats.items()}}
    try:
        moved = _outcome("the first path", first, other, trained, Precisions())
    except SubjectError:
        return
    if _same(moved, outcomes[name]):
        raise SubjectError("both paths return the same whatever they are given: there is nothing to compare")


def _same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    """Return whether two outcomes are equal, gradients that are zero everywhere left aside."""
    kept = [
        {name: part for name, part in parts.items() if not name.startswith(_BY) or bool(part.any())}
        for parts in (one, two)
    ]
    return kept[0].keys() == kept[1].keys() and all(torch.equal(kept[0][name], kept[1][name]) for name in kept[0])


def _outcome(
    what: str, path: Callable[..., Any], case: Inputs, trained: Sequence[str], seen: Precisions
) -> dict[str, Tensor]:
    """Return every number that a path gives, and the gradient of their sum, each entry weighed by its place."""
    given = {name: made.detach().clone() if isinstance(made, Tensor) else made for name, made in case.items()}
    fixed = [n for n in trained if n in given and not (isinstance(given[n], Tensor) and given[n].is_floating_point())]
    if fixed:
        raise SubjectError(f"nothing can be differentiated by {fixed[0]!r}: it is no floating tensor")
    leaves = {name: given[name].requires_grad_() for name in trained if name in given}
    # a view of each leaf, so that a path may write into what it is given
    returned = call_by_name(what, path, {**given, **{name: leaf.clone() for name, leaf in leaves.items()}})
    parts = dict(_flat(what, "value", returned))
    for part in parts.values():
        seen.see(part)
    made = {name: numbers_of(what, part) for name, part in parts.items()}
    total = sum(
        (part * torch.arange(1, part.numel() + 1, dtype=part.dtype).view(part.shape)).sum() for part in made.values()
    )
    gradients: Sequence[Tensor | None] = [None] * len(leaves)
    if isinstance(total, Tensor) and total.requires_grad:
        gradients = derivative(what, total, list(leaves.values()))
    values = {name: part.detach() for name, part in made.items()}
    for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
        values[_BY + name] = (torch.zeros_like(leaf.detach()) if gradient is None else gradient).double()
    return values


def _flat(what: str, name: str, made: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor in what a path returned, with the way to it."""
    if isinstance(made, Mapping):
        for key, part in made.items():
            yield from _flat(what, f"{name}[{key!r}]", part)
    elif isinstance(made, tuple | list):
        for place, part in enumerate(made):
            yield from _flat(what, f"{name}[{place}]", part)
    elif isinstance(made, Tensor):
        yield name, made
    elif isinstance(made, np.ndarray | np.number):
        yield name, foreign(f"reading what {what} returned", torch.as_tensor, made)
    elif isinstance(made, int | float):
        yield name, torch.tensor(made, dtype=torch.float64)
    else:
        raise SubjectError(f"{what} returned {type(made).__name__}; it must return numbers or tensors")


def _furthest(one: Tensor, two: Tensor, aside: Bool[Tensor, " *shape"]) -> str:
    """Return where two tensors differ most, and both entries; some entries are left aside."""
    if not one.numel():
        return "is empty"
    gap = torch.where(one == two, 0.0, (one - two).abs().nan_to_num(nan=float("inf"))).masked_fill(aside, 0.0)
    place = int(gap.argmax())
    index = [int(part) for part in np.unravel_index(place, tuple(one.shape))]
    where = f"at {index} " if index else ""
    first, second = told_apart(float(one.flatten()[place]), float(two.flatten()[place]))
    return f"{where}is {first} and {second}"
