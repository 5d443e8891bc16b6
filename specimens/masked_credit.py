"""Rewards, KL and advantages of masked positions and rows that reach the ones that count."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.audit.invariants.masking import masked_inert
from specimens.bench import Specimen
from specimens.sums import summed

Tokens = Float[Tensor, "B T"]
Rows = Float[Tensor, " B"]
Mask = Bool[Tensor, "B T"]
Group = Int[Tensor, " B"]
DISCOUNT, KL_WEIGHT = 0.9, 1.0


def standardised(score: Rows, group: Group, counts: Bool[Tensor, " B"]) -> Rows:
    """Return each score against the mean and standard deviation of those of its group that count; 0 in the rest."""
    return by_group(score, group, counts, lambda own: (own - own.mean()) / (own.std() + 1e-6))


def centred(score: Rows, group: Group, counts: Bool[Tensor, " B"]) -> Rows:
    return by_group(score, group, counts, lambda own: own - own.mean())


def by_group(score: Rows, group: Group, counts: Bool[Tensor, " B"], norm: Callable[[Rows], Rows]) -> Rows:
    made = torch.zeros_like(score)
    for number in group.unique():
        own = (group == number) & counts
        made[own] = norm(score[own]) if own.sum() > 1 else 0.0
    return made


def spread(advantage: Rows, mask: Mask) -> Tokens:
    return advantage[:, None] * mask


def score_of_every_position(reward: Tokens, mask: Mask, group: Group) -> Tokens:
    return spread(standardised(reward.sum(1), group, mask.any(1)), mask)


def score_of_unmasked_positions(reward: Tokens, mask: Mask, group: Group) -> Tokens:
    return spread(standardised(summed(reward, mask), group, mask.any(1)), mask)


def of_first_returns(reward: Tokens, mask: Mask, group: Group) -> Tokens:
    """Return advantages from each row's discounted return; a row without a reward counts with 0."""
    return spread(centred(discounted(reward)[:, 0], group, torch.ones_like(group, dtype=torch.bool)), mask)


def placed_before_an_empty_start(score: Rows, mask: Mask, group: Group) -> Tokens:
    """Write each score at its last token: index -1, the last padded one, where there is none."""
    reward = torch.zeros(mask.shape, dtype=score.dtype)
    reward[torch.arange(len(score)), mask.sum(1) - 1] = score
    return of_first_returns(reward, mask, group)


def placed_where_there_is_a_token(score: Rows, mask: Mask, group: Group) -> Tokens:
    reward, kept = torch.zeros(mask.shape, dtype=score.dtype), mask.any(1).nonzero()[:, 0]
    reward[kept, mask.sum(1)[kept] - 1] = score[kept]
    return of_first_returns(reward * mask, mask, group)


def rejected_rows_in_statistics(score: Rows, mask: Mask, group: Group) -> Tokens:
    return spread(standardised(score, group, torch.ones_like(group, dtype=torch.bool)), mask)


def rejected_rows_left_out(score: Rows, mask: Mask, group: Group) -> Tokens:
    return spread(standardised(score, group, mask.any(1)), mask)


def rows_without_action_in_mean(score: Rows, mask: Mask, group: Group) -> Tokens:
    return spread(centred(score, group, torch.ones_like(group, dtype=torch.bool)), mask)


def rows_without_action_left_out(score: Rows, mask: Mask, group: Group) -> Tokens:
    return spread(centred(score, group, mask.any(1)), mask)


def last_steps_advantage(score: Rows, mask: Mask, trajectory: Group, last: Bool[Tensor, " B"]) -> Tokens:
    """Mask at the last step of each trajectory, then copy the result to every step of it."""
    return spread(score, mask)[last][trajectory]


def each_steps_own_mask(score: Rows, mask: Mask, trajectory: Group, last: Bool[Tensor, " B"]) -> Tokens:
    return spread(score[last][trajectory], mask)


def discounted(rewards: Tokens, discount: float = DISCOUNT) -> Tokens:
    """Return the discounted sum of rewards from each position on."""
    running, made = torch.zeros_like(rewards[:, 0]), []
    for t in reversed(range(rewards.shape[1])):
        running = rewards[:, t] + discount * running
        made.append(running)
    return torch.stack(made[::-1], 1)


def returns_with_kl_of_observations(kl: Tokens, mask: Mask) -> Tokens:
    return discounted(-KL_WEIGHT * kl)


def returns_with_kl_of_actions(kl: Tokens, mask: Mask) -> Tokens:
    return discounted(torch.where(mask, -KL_WEIGHT * kl, 0.0))


def mask_from_inputs(reward: Tokens, inputs: Int[Tensor, "B T"], labels: Int[Tensor, "B T"]) -> Tokens:
    """Look for the ignored label among the inputs, where it never stands."""
    return discounted(torch.where(inputs != -100, reward, 0.0), 1.0)


def mask_from_labels(reward: Tokens, inputs: Int[Tensor, "B T"], labels: Int[Tensor, "B T"]) -> Tokens:
    return discounted(torch.where(labels != -100, reward, 0.0), 1.0)


def mean_of_padded_advantages(adv: Tokens, mask: Mask) -> Tokens:
    return spread(adv.mean(1), mask)


def mean_of_unmasked_advantages(adv: Tokens, mask: Mask) -> Tokens:
    return spread(summed(adv, mask) / mask.sum(1), mask)


def lengths(*counts: int, width: int) -> Mask:
    """Return the mask of responses padded on the right."""
    return torch.arange(width) < torch.tensor(counts)[:, None]


REJECTED_REWARD = torch.tensor([[True, False], [True, True], [True, True]])
SCORED = {"score": torch.tensor([10.0, 0.0, 1.0], dtype=torch.double), "mask": lengths(0, 2, 3, width=3)}
ONE_GROUP = SCORED | {"group": torch.tensor([0, 0, 0])}
STEPS = {
    "score": torch.tensor([0.5, 0.5, -1.0], dtype=torch.double),
    "mask": torch.tensor([[False, True, True], [True, False, False], [True, True, True]]),
    "trajectory": torch.tensor([0, 0, 1]),
    "last": torch.tensor([False, True, True]),
}
LABELS = torch.tensor([[5, 6, -100, -100], [7, 5, 6, -100]])
REWARDS = torch.tensor([[1.5, 1.0, 2.0, 2.0], [0.5, -1.0, 1.0, 3.0]], dtype=torch.double)
ACTIONS = torch.tensor([[True, False, False, True], [True, True, False, True]])

SPECIMENS = (
    Specimen(
        "ADV-10",
        partial(
            masked_inert,
            case={
                "reward": torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.5, 0.0]], dtype=torch.double),
                "mask": REJECTED_REWARD,
                "group": torch.tensor([0, 0, 0]),
            },
        ),
        score_of_every_position,
        score_of_unmasked_positions,
    ),
    Specimen(
        "ADV-11",
        partial(masked_inert, case=ONE_GROUP, left=False),
        placed_before_an_empty_start,
        placed_where_there_is_a_token,
    ),
    Specimen("ADV-12", partial(masked_inert, case=ONE_GROUP), rejected_rows_in_statistics, rejected_rows_left_out),
    Specimen(
        "ADV-17",
        partial(
            masked_inert,
            case={
                "score": torch.tensor([100.0, 1.0, 0.0], dtype=torch.double),
                "mask": lengths(0, 2, 3, width=3),
                "group": torch.tensor([0, 0, 0]),
            },
        ),
        rows_without_action_in_mean,
        rows_without_action_left_out,
    ),
    Specimen("ADV-18", partial(masked_inert, case=STEPS), last_steps_advantage, each_steps_own_mask),
    Specimen(
        "MASK-07",
        partial(
            masked_inert,
            case={"reward": REWARDS, "inputs": LABELS.clamp(min=0), "labels": LABELS},
            mask=LABELS != -100,
            fill={"labels": -100},
        ),
        mask_from_inputs,
        mask_from_labels,
    ),
    Specimen(
        "MASK-09",
        partial(masked_inert, case={"kl": torch.ones(2, 4, dtype=torch.double), "mask": ACTIONS}, close_up=False),
        returns_with_kl_of_observations,
        returns_with_kl_of_actions,
    ),
    Specimen(
        "MASK-14",
        partial(masked_inert, case={"adv": REWARDS, "mask": ACTIONS}),
        mean_of_padded_advantages,
        mean_of_unmasked_advantages,
    ),
)
