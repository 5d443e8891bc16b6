"""I13: do two paths that claim one formula agree, in value and in gradient?

Fused and plain, scalar and vectorised, a trainer and its copy: both are called with the same batches, which differ
in what such paths forget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.check import TOLERANCE, Check, SubjectError, answers, verdict_of
from assay.audit.invariants.byname import call_by_name
from assay.audit.invariants.findings import few, told_apart
from assay.core.advantages import leave_one_out
from assay.core.streams import Stream, normals, uniforms

Inputs = Mapping[str, Any]
"""What both paths are called with, by parameter name."""


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
        cases: by name; :func:`loss_cases` unless given.
        trained: arguments that carry the gradient, where a case has them.
        tolerance: relative to the largest entry of what ``first`` returns in that place, or to a thousandth of the
            largest it gives anywhere, where that is more: a sum that cancels to zero leaves rounding.
    """
    tried = loss_cases() if cases is None else cases
    if not tried:
        raise SubjectError("no case: give at least one, or none at all for the usual batches")
    findings, worst = [], 0.0
    for name, case in tried.items():
        one, two = _outcome("the first path", first, case, trained), _outcome("the second path", second, case, trained)
        if one.keys() != two.keys():
            raise SubjectError(f"the first path returned {', '.join(one)}, the second {', '.join(two)}")
        common = max((float(part.abs().max()) for part in one.values() if part.numel()), default=0.0) / 1000
        for part, expected in one.items():
            made = two[part]
            if made.shape != expected.shape:
                findings.append(f"{name}: {part} has shape {tuple(expected.shape)} and {tuple(made.shape)}")
                continue
            gap = _gap(made, expected, common) if made.numel() else 0.0
            worst = max(worst, gap)
            if gap > tolerance:
                findings.append(f"{name}: {part} {_furthest(expected, made)}")
    return verdict_of(
        "I13",
        f"value{''.join(f' and gradient by {name}' for name in trained)} of two paths that claim one formula",
        few(findings),
        error=worst,
        tolerance=tolerance,
        why="the same arithmetic in another order",
        exactness=f"{len(tried)} batches: {', '.join(tried)}",
    )


def loss_cases(*, seed: int = 0) -> dict[str, Inputs]:
    """Return batches that two paths of one loss are compared on, each with one thing the plainest has not.

    Each holds ``logp``, ``logp_old``, ``logp_ref``, ``logp_sampler``, ``mask`` ``[B, T]``; ``reward``, ``adv``
    (leave-one-out), ``group``, ``sample_mask`` (0.0 for a response that does not train) ``[B]``; and ``accumulation``,
    the number of micro-batches of consecutive rows in which the batch is seen. Everything is float64.
    """
    even, uneven = [3, 3, 3, 3], [1, 3, 4, 2]
    return {
        "even lengths": _batch(seed, even),
        "uneven lengths": _batch(seed, uneven),
        "an old policy that differs": _batch(seed, even, old=0.4),
        "a sampler that differs": _batch(seed, even, sampler=0.4),
        "a response that does not train": _batch(seed, even, dropped=1),
        "two micro-batches": _batch(seed, even, accumulation=2),
        "two micro-batches of uneven lengths": _batch(seed, uneven, accumulation=2),
        "all of these": _batch(seed, uneven, old=0.4, sampler=0.4, dropped=1, accumulation=2),
    }


def _batch(
    seed: int, lengths: list[int], *, old: float = 0.0, sampler: float = 0.0, dropped: int = 0, accumulation: int = 1
) -> Inputs:
    """Return two groups of responses of given lengths; ``logp_old`` is ``old`` away from ``logp``, and the
    sampler's log-probabilities ``sampler`` from those."""
    rows, longest = len(lengths), max(lengths)

    def noise(address: int) -> Float[Tensor, "B T"]:
        return normals(seed, Stream.DATA, rows * longest, problem=address).view(rows, longest)

    mask = (torch.arange(longest) < torch.tensor(lengths)[:, None]).double()
    logp = -0.2 - noise(0).abs()
    logp_old = logp + old * noise(1)
    reward = uniforms(seed, Stream.DATA, rows, problem=[1], sample=[0])[0]
    group = torch.arange(rows) // 2
    return {
        "logp": logp * mask,
        "logp_old": logp_old * mask,
        "logp_ref": (logp + 0.5 * noise(2)) * mask,
        "logp_sampler": (logp_old + sampler * noise(3)) * mask,
        "mask": mask,
        "reward": reward,
        "adv": leave_one_out(reward, group),
        "group": group,
        "sample_mask": (torch.arange(rows) >= dropped).double(),
        "accumulation": accumulation,
    }


def _outcome(what: str, path: Callable[..., Any], case: Inputs, trained: Sequence[str]) -> dict[str, Tensor]:
    """Return every number that a path gives, and the gradient of their sum, each entry weighed by its place."""
    given = {name: made.detach().clone() if isinstance(made, Tensor) else made for name, made in case.items()}
    leaves = {name: given[name].requires_grad_() for name in trained if name in given}
    # a view of each leaf, so that a path may write into what it is given
    made = dict(_flat(what, "value", call_by_name(what, path, {**given, **{n: t.clone() for n, t in leaves.items()}})))
    total = sum(
        (part * torch.arange(1, part.numel() + 1, dtype=part.dtype).view(part.shape)).sum() for part in made.values()
    )
    gradients: Sequence[Tensor | None] = [None] * len(leaves)
    if isinstance(total, Tensor) and total.requires_grad:
        gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    values = {name: part.detach() for name, part in made.items()}
    for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
        values[f"gradient by {name}"] = torch.zeros_like(leaf.detach()) if gradient is None else gradient
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
        yield name, made.double()
    elif isinstance(made, int | float | np.ndarray | np.number):
        yield name, torch.as_tensor(made, dtype=torch.float64)
    else:
        raise SubjectError(f"{what} returned {type(made).__name__}; it must return numbers or tensors")


def _gap(made: Tensor, expected: Tensor, common: float) -> float:
    """Return the largest difference, relative to the larger of both scales; NaN is infinitely far from a number."""
    scale = max(float(expected.abs().max()), common) or 1.0
    difference = (made - expected).abs().masked_fill(made.isnan() & expected.isnan(), 0.0)
    return float(difference.nan_to_num(nan=float("inf")).max()) / scale


def _furthest(one: Tensor, two: Tensor) -> str:
    """Return where two tensors differ most, and both entries."""
    place = int((one - two).abs().nan_to_num(nan=float("inf")).argmax())
    index = [int(part) for part in np.unravel_index(place, tuple(one.shape))]
    where = f"at {index} " if index else ""
    first, second = told_apart(float(one.flatten()[place]), float(two.flatten()[place]))
    return f"{where}is {first} and {second}"
