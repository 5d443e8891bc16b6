"""What is asked about a loss."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.call import Loss
from assay.audit.check import TOLERANCE
from assay.audit.expectation import Design
from assay.tree.fields import objective_gradient
from assay.tree.world import World


@dataclass(frozen=True)
class Question:
    """What is asked about a loss, and to what precision it can be answered.

    Attributes:
        loss: called by parameter name.
        world: its problems.
        terms: the stated objective, coefficients by name.
        design: how batches are made.
        tolerance: relative.
        why: why it is that.
        coarsest: least precise floating type that the loss computed in.
    """

    loss: Loss
    world: World
    terms: Mapping[str, float]
    design: Design
    tolerance: float = TOLERANCE
    why: str = ""
    coarsest: torch.dtype = torch.float64

    @functools.cached_property
    def stated(self) -> Float[Tensor, " D"]:
        """Return the gradient that should be ascended, meaned over the problems."""
        return objective_gradient(dict(self.terms), self.world)
