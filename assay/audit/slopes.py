"""From a loss to its derivatives over many batches.

Each batch is a call of its own, as long as that takes seconds. Beyond, a loss whose value on a batch of groups is the
mean of its values on each may be called once for many groups: the derivative of a group alone is the joint one times
their number. Whether this loss is such a one is checked on the batches of a call that are most unlike: those of the
smallest and the largest sums of each column, and a spread of others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.audit.call import Loss, columns, derivative_by, finite, row_starts, touches_logits, wanted, whole_batch
from assay.core.advantages import leave_one_out
from assay.errors import InputError
from assay.tree.groups import SYMMETRY_TOLERANCE, Atoms, classes_as_atoms, responses_as_atoms
from assay.tree.world import World

ALONE = 20_000
"""Most batches to call one by one: a few seconds."""
_SPREAD = 8


class LossSlopes:
    """The derivatives of a loss, by what it touches the policy through; see :data:`assay.tree.groups.Slopes`.

    Args:
        loss: called by parameter name.
        world: where the responses come from.
        problems: numbers of the problems that a batch holds a group of.
        sizes: members of each of those groups.
        joint: whether to call the loss once for many batches, where it allows that.
        tolerance: largest relative difference of a joint and a lone call that still counts as none.
    """

    def __init__(
        self,
        loss: Loss,
        world: World,
        problems: Sequence[int],
        sizes: Sequence[int],
        *,
        joint: bool = False,
        tolerance: float = SYMMETRY_TOLERANCE,
    ) -> None:
        self.joint, self.checked = joint, 0
        self._loss, self._names, self._tolerance = loss, wanted(loss), tolerance
        self._leaf = "logits" if touches_logits(loss) else "logp"
        self._whole = whole_batch(world)
        starts = row_starts(world)
        self._starts = [starts[number] for number in problems]
        self._group = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        rest = {"adv", "group", *(("logp",) if self._leaf == "logits" else ())}
        self._columns = columns([name for name in self._names if name not in rest], self._whole, self._whole.logits)

    def __call__(self, groups: Sequence[Int[Tensor, "N _"]]) -> Float[Tensor, "N B K"]:
        """Return ``∂L/∂x`` of every row of N batches."""
        rows = torch.cat([start + members for start, members in zip(self._starts, groups, strict=True)], dim=1)
        if self.joint and len(rows) > 1:
            made = self._slope(rows) * len(rows)
            unlike = self._unlike(rows)
            alone = torch.stack([self._slope(rows[place : place + 1])[0] for place in unlike])
            if float((made[unlike] - alone).abs().max()) <= self._tolerance * float(alone.abs().max()):
                self.checked += len(unlike)
                return made
            self.joint = False
        return torch.stack([self._slope(row[None])[0] for row in rows])

    def _unlike(self, rows: Int[Tensor, "N B"]) -> list[int]:
        """Return the batches of extreme sums of reward, length and log-probabilities, and a spread of others."""
        whole = self._whole
        columns = [whole.reward, whole.mask.sum(1), *(self._columns[n].sum(1) for n in self._names if n[:4] == "logp")]
        sums = [column[rows].sum(1) for column in columns if column.ndim == 1]
        ends = [place for total in sums for place in (int(total.argmin()), int(total.argmax()))]
        return sorted({*ends, *range(0, len(rows), max(1, len(rows) // _SPREAD))})

    def _slope(self, rows: Int[Tensor, "N B"]) -> Float[Tensor, "N B K"]:
        flat = rows.flatten()
        groups = int(self._group[-1]) + 1
        ids = (self._group + groups * torch.arange(len(rows))[:, None]).flatten()
        if self._leaf == "logits":
            batch = dataclasses.replace(self._whole.take(flat), group=ids)
            leaf = batch.logits.clone().requires_grad_()
            given = columns(self._names, batch, leaf)
        else:
            given = {name: column[flat] for name, column in self._columns.items()}
            if "group" in self._names:
                given["group"] = ids
            if "adv" in self._names:
                given["adv"] = leave_one_out(self._whole.reward[flat], ids)
            leaf = given["logp"].requires_grad_()
        made = derivative_by(leaf, self._loss, given)
        if self._leaf == "logp":
            made = made.masked_fill(~self._whole.present[flat], 0.0)
        return finite(made).reshape(*rows.shape, -1)


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
