"""What does a gradient field ascend? The shortest combination of known fields that it equals, by least squares."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

EXACT = 1e-9
"""Largest relative residual of a combination that counts as equality; float64 leaves about 1e-15."""
LONGEST = 3


@dataclass(frozen=True)
class Attribution:
    """A field written in terms of known ones.

    Attributes:
        coefficients: by name; the fewest that reach equality, or the best of the fields that were asked for.
        residual: relative norm of what they leave, 0 when the field itself is zero.
        norm: norm of the field.
        exact: whether the combination equals the field.
    """

    coefficients: dict[str, float]
    residual: float
    norm: float
    exact: bool


def attribute(
    target: Float[Tensor, " D"],
    known: Mapping[str, Float[Tensor, " D"]],
    *,
    scale: float,
    nearest: Sequence[str],
    rank: int | None = None,
    longest: int = LONGEST,
    exact: float = EXACT,
) -> Attribution:
    """Find the shortest combination of known fields that equals the target; of several, the one of earlier fields.

    Args:
        target: the field to explain, over as many weights, problems and policies as are at hand.
        known: fields over the same.
        scale: the size of a typical field; a target below ``exact`` of it is zero.
        nearest: what the target is written in where no combination equals it.
        rank: dimensions in which fields can differ; as many fields fit anything, so fewer are combined.
        longest: most fields to combine.
        exact: largest relative residual that counts as equality.
    """
    norm = float(target.norm())
    if norm <= exact * scale:
        return Attribution({}, 0.0, norm, True)
    most = longest if rank is None else min(longest, rank - 1)
    for count in range(1, most + 1):
        for names in itertools.combinations(known, count):
            made = _fit(target, names, known, exact)
            if made.exact:
                return made
    made = _fit(target, tuple(nearest), known, exact)
    return made if rank is None or len(nearest) < rank else dataclasses.replace(made, exact=False)


def _fit(target: Float[Tensor, " D"], names: tuple[str, ...], known: Mapping[str, Tensor], exact: float) -> Attribution:
    basis = torch.stack([known[name] for name in names], dim=1)
    coefficients = torch.linalg.lstsq(basis, target[:, None], driver="gelsd").solution[:, 0]
    residual = float((basis @ coefficients - target).norm() / target.norm())
    named = dict(zip(names, coefficients.tolist(), strict=True))
    return Attribution(named, residual, float(target.norm()), residual <= exact)
