"""From a loss to its derivatives over many batches, with as few calls as the loss allows.

A loss whose value on a batch of groups is the mean of its values on each may be called once for many groups: the
derivative of a group alone is the joint one times their number. Whether this loss is such a one is checked, on every
group of the first call and on one of each later call; otherwise each batch is called alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.audit.call import Batch, Loss, logp_slope, slope, touches_logits, whole_batch
from assay.errors import InputError
from assay.tree.groups import SYMMETRY_TOLERANCE, Atoms, classes_as_atoms, responses_as_atoms
from assay.tree.world import World

_FIRST = 32


class LossSlopes:
    """The derivatives of a loss, by what it touches the policy through; see :data:`assay.tree.groups.Slopes`.

    Args:
        loss: called by parameter name.
        world: where the responses come from.
        problems: numbers of the problems that a batch holds a group of.
        sizes: members of each of those groups.
        tolerance: largest relative difference of a joint and a lone call that still counts as none.
    """

    def __init__(
        self,
        loss: Loss,
        world: World,
        problems: Sequence[int],
        sizes: Sequence[int],
        tolerance: float = SYMMETRY_TOLERANCE,
    ) -> None:
        self._tolerance = tolerance
        self.logits = touches_logits(loss)
        self._loss, self._world = loss, world
        self._whole = whole_batch(world)
        starts = torch.tensor([0, *(len(problem.tree.path) for problem in world)]).cumsum(0)
        self._starts = [int(starts[number]) for number in problems]
        self._group = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        self._together: bool | None = None

    def __call__(self, groups: Sequence[Int[Tensor, "N _"]]) -> Float[Tensor, "N B K"]:
        """Return ``∂L/∂x`` of every row of N batches."""
        rows = torch.cat([start + members for start, members in zip(self._starts, groups, strict=True)], dim=1)
        if self._together is None:
            self._together = self._try(rows[:_FIRST])
        if not self._together:
            return torch.stack([self._slope(row[None])[0] for row in rows])
        joint = self._slope(rows) * len(rows)
        spot = len(rows) // 2
        if not self._same(joint[spot], self._slope(rows[spot : spot + 1])[0]):
            self._together = False
            return self(groups)
        return joint

    def batch(self, rows: Int[Tensor, "N B"]) -> Batch:
        """Return N batches as one, each with groups of its own."""
        groups = int(self._group[-1]) + 1
        ids = self._group + groups * torch.arange(len(rows))[:, None]
        return dataclasses.replace(self._whole.take(rows.flatten()), group=ids.flatten())

    def _slope(self, rows: Int[Tensor, "N B"]) -> Float[Tensor, "N B K"]:
        take = slope if self.logits else logp_slope
        return take(self._loss, self.batch(rows)).reshape(*rows.shape, -1)

    def _try(self, rows: Int[Tensor, "N B"]) -> bool:
        if len(rows) < 2:
            return False
        alone = torch.stack([self._slope(row[None])[0] for row in rows])
        return self._same(self._slope(rows) * len(rows), alone)

    def _same(self, made: Tensor, expected: Tensor) -> bool:
        return float((made - expected).abs().max()) <= self._tolerance * float(expected.abs().max())


def atoms_of(world: World, number: int, *, logits: bool, by_class: bool = False) -> Atoms:
    """Return what the members of one problem's groups are drawn from.

    Args:
        world: its problems.
        number: which one.
        logits: whether the loss reads logits, and so is differentiated by them.
        by_class: take responses of equal reward, length and truncation as one.
    """
    problem = world[number]
    jacobian = problem.logits_jacobian if logits else problem.logp_jacobian
    longest = max(other.tree.path.shape[1] for other in world)
    width = jacobian.shape[1] // problem.tree.path.shape[1]
    jacobian = torch.nn.functional.pad(jacobian, (0, 0, 0, width * (longest - problem.tree.path.shape[1])))
    if not by_class:
        return responses_as_atoms(problem.sampler_logp, jacobian)
    if logits:
        raise InputError("a loss that reads logits sees more of a response than its class")
    features = torch.cat([problem.reward[:, None], problem.mask.double(), problem.tree.truncated.double()[:, None]], 1)
    return classes_as_atoms(problem.sampler_logp, jacobian, features)
