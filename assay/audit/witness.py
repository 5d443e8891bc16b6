"""What shows a wrong expectation: the worst weight, and the smallest group whose update is not the one expected."""

from __future__ import annotations

import itertools

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.audit.call import Loss, touches_logits
from assay.audit.check import SubjectError
from assay.audit.expectation import Design
from assay.audit.slopes import LossSlopes
from assay.core.advantages import leave_one_out
from assay.tree.world import TreeProblem, World

_SMALLEST_RESPONSES = 6


def worst_weight(made: Float[Tensor, " D"], stated: Float[Tensor, " D"], world: World) -> str:
    """Name the weight whose expected update is furthest from the stated gradient, with both values."""
    place = int((made - stated).abs().argmax())
    offset = place
    for problem in world:
        if offset < problem.logits.numel():
            break
        offset -= problem.logits.numel()
    row, token = divmod(offset, problem.logits.shape[1])
    prefix = problem.tree.prefixes[int(problem.tree.inner[row])]
    return (
        f"worst weight: problem {problem.name!r}, logit of token {token} after prefix {prefix}: "
        f"expected update {float(made[place]):.6g}, gradient {float(stated[place]):.6g}"
    )


def smallest_witness(loss: Loss, world: World, design: Design, terms: dict[str, float]) -> list[str]:
    """Return the smallest group on which the loss pushes log-probabilities otherwise than leave-one-out does on the
    stated return; none where the objective is no sum of reward and KL, or the loss reads logits.

    A push is minus ``∂L/∂logp``. Many unbiased losses differ from leave-one-out on single groups, so this shows what
    a loss that failed does, and is no test by itself.
    """
    if touches_logits(loss) or not set(terms) <= {"reward", "kl"}:
        return []
    number = 0 if design.sizes[0] > 1 else 1
    problem, size = world[number], design.sizes[number]
    by_length = problem.drawn[problem.tree.lengths[problem.drawn].argsort(stable=True)][:_SMALLEST_RESPONSES]
    slopes = LossSlopes(loss, world, [number], [size])
    for rows in itertools.combinations_with_replacement(range(len(by_length)), size):
        if len(set(rows)) < 2:
            continue
        members = by_length[list(rows)]
        try:
            push = -slopes([members[None]])[0]
        except SubjectError:
            continue  # it refuses this group; the audit saw others
        expected = _leave_one_out_push(problem, members, terms)
        width = expected.shape[1]
        if float((push[:, :width] - expected).abs().max()) > 1e-6:
            return [_described(problem, members, push[:, :width], expected)]
    return []


def _leave_one_out_push(problem: TreeProblem, members: Int[Tensor, " G"], terms: dict[str, float]) -> Tensor:
    logp = problem.tree.token_logp(problem.logits).sum(1) - problem.tree.token_logp(problem.logits_ref).sum(1)
    returns = terms.get("reward", 0.0) * problem.reward + terms.get("kl", 0.0) * logp
    adv = leave_one_out(returns[members], torch.zeros(len(members), dtype=torch.long))
    return adv[:, None] / len(members) * problem.mask[members]


def _described(problem: TreeProblem, members: Int[Tensor, " G"], push: Tensor, expected: Tensor) -> str:
    rows = []
    for place, member in enumerate(members.tolist()):
        length = int(problem.tree.lengths[member])
        tokens = problem.tree.responses[member, :length].tolist()
        pushes, wanted = (
            "[" + ", ".join(f"{value:.4g}" for value in table[place, :length].tolist()) + "]"
            for table in (push, expected)
        )
        rows.append(f"{tokens} (reward {float(problem.reward[member]):.3g}) by {pushes}, leave-one-out by {wanted}")
    return f"smallest witness, problem {problem.name!r}: the loss pushes the log-probabilities of " + "; ".join(rows)
