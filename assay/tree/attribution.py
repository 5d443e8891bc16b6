"""What does a gradient field ascend? The shortest combination of known fields that it equals, by least squares."""

from __future__ import annotations

import itertools
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
        coefficients: by name; the fewest that reach equality, or the best single one.
        residual: relative norm of what they leave, 0 when the field itself is zero.
        norm: norm of the field.
    """

    coefficients: dict[str, float]
    residual: float
    norm: float

    @property
    def exact(self) -> bool:
        """Return whether the combination equals the field."""
        return self.residual <= EXACT


def attribute(
    target: Float[Tensor, " D"], known: dict[str, Float[Tensor, " D"]], *, scale: float, longest: int = LONGEST
) -> Attribution:
    """Find the shortest combination of known fields that equals the target.

    Args:
        target: the field to explain, over as many weights, problems and policies as are at hand.
        known: fields over the same.
        longest: most fields to combine.
        scale: the size of a typical field; a target below ``EXACT`` of it is zero.
    """
    norm = float(target.norm())
    if norm <= EXACT * scale:
        return Attribution({}, 0.0, norm)
    best: Attribution | None = None
    for count in range(1, longest + 1):
        fits = [_fit(target, names, known) for names in itertools.combinations(known, count)]
        shortest = min(fits, key=lambda made: made.residual)
        best = best or shortest
        if shortest.exact:
            return shortest
    assert best is not None
    return best


def _fit(target: Float[Tensor, " D"], names: tuple[str, ...], known: dict[str, Tensor]) -> Attribution:
    basis = torch.stack([known[name] for name in names], dim=1)
    coefficients = torch.linalg.lstsq(basis, target[:, None], driver="gelsd").solution[:, 0]
    residual = float((basis @ coefficients - target).norm() / target.norm())
    return Attribution(dict(zip(names, coefficients.tolist(), strict=True)), residual, float(target.norm()))
