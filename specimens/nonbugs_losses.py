"""Reports about KL, ratios and losses that were no bugs: each form must pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.audit.invariants.expected import expected_gradient
from assay.audit.invariants.fixed_points import fixed_points, reference_after_restart
from assay.audit.invariants.liveness import liveness
from assay.core.advantages import leave_one_out
from assay.tree.fields import frozen_reverse_kl, reverse_kl
from assay.tree.world import TreeProblem
from assay.tree.worlds import small_world
from specimens.bench import NonBug
from specimens.starting_point import reference_taken_before_loading
from specimens.sums import reinforce, summed

Tokens = Float[Tensor, "B T"]
Rows = Float[Tensor, " B"]
Groups = Int[Tensor, " B"]
Loss = Float[Tensor, ""]


def kl_of_sampled_tokens(logp: Tokens, logp_ref: Tokens, mask: Tokens) -> Mapping[str, Tensor]:
    """Estimate the KL from the sampled tokens alone, in two ways; neither sums over the vocabulary."""
    gap = logp_ref - logp
    return {
        "kl": summed(-gap, mask).mean(),
        "k3": summed(gap.exp() - 1 - gap, mask).mean(),
    }


def exact_kl(problem: TreeProblem) -> float:
    return float(reverse_kl(problem, problem.logits))


def exact_kl_by_state(problem: TreeProblem) -> float:
    return float(frozen_reverse_kl(problem, problem.logits))


def ratio_to_itself(logp: Tokens, adv: Rows, mask: Tokens) -> Loss:
    """Multiply by ``exp(logp - sg[logp])``, whose value is 1 and whose gradient is the score."""
    return -(adv * summed((logp - logp.detach()).exp(), mask)).mean()


def value_is_zero(logp: Tokens, adv: Rows, mask: Tokens) -> Loss:
    """Use the ratio in place of the log-probability, once a response: with centred advantages the value is 0."""
    return -(adv * summed(logp - logp.detach(), mask).exp()).mean()


def group_mean(values: Rows, group: Groups) -> Rows:
    sums = values.new_zeros(int(group.max()) + 1).index_add(0, group, values)
    return (sums / torch.bincount(group))[group]


def mean_centred(logp: Tokens, reward: Rows, group: Groups, mask: Tokens) -> Loss:
    """Centre by the group's mean and divide by no deviation; its own reward is in the mean."""
    return reinforce(logp, reward - group_mean(reward, group), mask)


def one_flag_moves_the_kl(*, beta: float = 0.1, kl_in_reward: bool = False) -> Callable[..., Tensor]:
    """Charge the KL in the reward or in the loss; it is in one place, and the flag says in which."""

    def loss(logp: Tokens, logp_ref: Tokens, reward: Rows, group: Groups, mask: Tokens) -> Tensor:
        if kl_in_reward:
            returns = reward - beta * summed(logp - logp_ref, mask).detach()
            return reinforce(logp, leave_one_out(returns, group), mask)
        penalty = summed((logp - logp_ref).square() / 2, mask).mean()
        return reinforce(logp, leave_one_out(reward, group), mask) + beta * penalty

    return loss


def score_one_slot_late(logp: Tokens, value: Tokens, reward: Rows, mask: Tokens) -> Loss:
    """Put the score in the slot behind the last token: the return of every token is the same."""
    slots = torch.arange(mask.shape[1] + 1)
    rewards = torch.where(slots == mask.sum(1, keepdim=True), reward[:, None], 0.0)
    returns = rewards.flip(1).cumsum(1).flip(1)[:, :-1]
    return -summed((returns - value).detach() * logp, mask).mean()


def _constant_within_groups() -> tuple[TreeProblem, ...]:
    """Return a world in which all responses to a problem score the same, and problems differ widely."""
    scores = (0.0, 10.0)
    return tuple(
        replace(problem, reward=torch.full_like(problem.reward, score))
        for problem, score in zip(small_world(), scores, strict=True)
    )


SAMPLED = partial(fixed_points, exact={"kl": exact_kl, "k3": exact_kl_by_state})
PASS = partial(expected_gradient, world=small_world())

NONBUGS = (
    NonBug("huggingface/trl#3104", SAMPLED, kl_of_sampled_tokens),
    NonBug(
        "huggingface/trl#2865, #2837; meta-pytorch/torchforge#571; xiaomi-research/time-r1#20; "
        "jingyaogong/minimind#775",
        PASS,
        ratio_to_itself,
    ),
    NonBug("huggingface/trl#3452; unslothai/unsloth#2291; huggingface/open-r1#239", PASS, value_is_zero),
    NonBug("huggingface/trl#3857", partial(expected_gradient, world=_constant_within_groups()), value_is_zero),
    NonBug(
        "thinking-machines-lab/tinker-cookbook#579",
        partial(expected_gradient, objective="0.5*reward", group_size=2, world=small_world()),
        mean_centred,
    ),
    NonBug(
        "verl-project/verl#265, #750; PeterGriffinJin/Search-R1#118; DataArcTech/SQL-R1#9",
        partial(liveness, options={"beta": 0.3, "kl_in_reward": True}),
        one_flag_moves_the_kl,
    ),
    NonBug(
        "verl-project/verl#3032; allenai/open-instruct#546", reference_after_restart, reference_taken_before_loading
    ),
    NonBug("huggingface/trl#3750, #1893", PASS, score_one_slot_late),
)
