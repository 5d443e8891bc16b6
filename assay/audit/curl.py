"""Is a field the gradient of anything? A gradient's derivative is symmetric.

The expected ascent is differentiated by central differences along a few directions u, w of the policy's logits; for the
gradient of a scalar ``w·(Du)`` and ``u·(Dw)`` are equal. What is returned is their difference over their size.
"""

from __future__ import annotations

import dataclasses

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.call import Loss
from assay.audit.expectation import Design, expected_ascent
from assay.core.streams import Stream, normals
from assay.tree.world import World

STEP = 1e-4
DIRECTIONS = 4
SMALLEST_GROUP = 2


def curl(loss: Loss, world: World, design: Design) -> float:
    """Return the asymmetry of the derivative of a loss's expected ascent: 0 for a gradient, 1 for a pure rotation.

    Groups are made as small as they can be, since the field only has to be of the same kind. On-policy, the policy at
    the start of the update and the sampler move with the policy; a sampler or an older policy that differs stays.
    """
    small = dataclasses.replace(design, sizes=tuple(min(size, SMALLEST_GROUP) for size in design.sizes))
    width = sum(problem.logits.numel() for problem in world)

    def along(direction: Float[Tensor, " D"]) -> Float[Tensor, " D"]:
        ahead, behind = (expected_ascent(loss, _moved(world, step * direction), small).ascent for step in (STEP, -STEP))
        return (ahead - behind) / (2 * STEP)

    directions = torch.stack([normals(0, Stream.DATA, width, problem=number) for number in range(DIRECTIONS)])
    form = torch.stack([along(direction) for direction in directions]) @ directions.T
    return float((form - form.T).norm() / (2 * form.norm() or 1.0))


def _moved(world: World, shift: Float[Tensor, " D"]) -> World:
    parts = torch.split(shift, [problem.logits.numel() for problem in world])
    made = []
    for problem, part in zip(world, parts, strict=True):
        logits = problem.logits + part.view_as(problem.logits)
        old = logits if torch.equal(problem.logits_old, problem.logits) else problem.logits_old
        made.append(dataclasses.replace(problem, logits=logits, logits_old=old))
    return tuple(made)
