"""Is a field the gradient of anything? A gradient's derivative is symmetric.

The expected ascent is differentiated by central differences along a few directions u, w of the policy's logits; for the
gradient of a scalar ``w·(Du)`` and ``u·(Dw)`` are equal. What is returned is their difference over their size.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.call import Loss
from assay.audit.check import SubjectError
from assay.audit.expectation import Design, expected_ascent
from assay.core.streams import Stream, normals
from assay.errors import InputError
from assay.tree.groups import count_batches
from assay.tree.world import World, by_problem

STEP = 1e-4
DIRECTIONS = 4
BATCHES = 3_000
"""Most batches of groups of the size that was asked for; beyond, groups of two are taken."""
SMALLEST_GROUP = 2
CURL_ROUNDING = 1e-5
"""Largest asymmetry that finite differences leave of a gradient."""
NOTHING = 1e-7
"""Size of a derivative that differences cannot tell from zero, over that of the field."""


@dataclass(frozen=True)
class Curl:
    """How far a field is from being the gradient of anything.

    Attributes:
        asymmetry: of its derivative, over the derivative's size: 0 for a gradient, 1 for a pure rotation.
        sizes: responses in the groups that it was measured with.
    """

    asymmetry: float
    sizes: tuple[int, ...]


def curl(loss: Loss, world: World, design: Design) -> Curl | None:
    """Return the asymmetry of the derivative of a loss's expected ascent; None where it cannot be measured.

    On-policy, the policy at the start of the update and the sampler move with the policy; a sampler or an older policy
    that differs stays. A loss that cannot be called with the policy moved a little, or whose field is flat, has none.
    """
    if _batches(world, design) > BATCHES:
        design = dataclasses.replace(design, sizes=tuple(min(size, SMALLEST_GROUP) for size in design.sizes))
    tried = DIRECTIONS if _batches(world, design) <= BATCHES else 2
    width = sum(problem.logits.numel() for problem in world)

    def along(direction: Float[Tensor, " D"]) -> Float[Tensor, " D"]:
        ahead, behind = (
            expected_ascent(loss, _moved(world, step * direction), design).ascent for step in (STEP, -STEP)
        )
        return (ahead - behind) / (2 * STEP)

    directions = torch.stack([normals(0, Stream.DATA, width, problem=number) for number in range(tried)])
    try:
        form = torch.stack([along(direction) for direction in directions]) @ directions.T
        size = float(expected_ascent(loss, world, design).ascent.norm()) * float(directions.square().sum())
    except (SubjectError, InputError):
        return None
    if float(form.norm()) <= NOTHING * size:
        return None
    return Curl(float((form - form.T).norm() / (2 * form.norm())), design.sizes)


def _batches(world: World, design: Design) -> int:
    """Return how many batches an expectation goes through."""
    drawn = [len(problem.drawn) for problem in world]
    return sum(count_batches([drawn[n] for n in kind], [design.sizes[n] for n in kind]) for kind in design.batches)


def _moved(world: World, shift: Float[Tensor, " D"]) -> World:
    made = []
    for problem, part in zip(world, by_problem(shift, world), strict=True):
        logits = problem.logits + part.view_as(problem.logits)
        old = logits if torch.equal(problem.logits_old, problem.logits) else problem.logits_old
        made.append(dataclasses.replace(problem, logits=logits, logits_old=old))
    return tuple(made)
