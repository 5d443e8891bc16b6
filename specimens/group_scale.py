"""Deviations that an advantage is divided by: zero where it is not, noise where it is zero, one factor short."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.audit.invariants.groups import group_semantics
from specimens.bench import Specimen

Reward = Float[Tensor, " B"]
Ids = Int[Tensor, " B"]


def against_the_others(reward: Reward, group: Ids, scale: Callable[[Tensor, Reward, Reward], Tensor]) -> Reward:
    """Subtract the mean of the others, and scale by the others or the whole group; fewer than three go unscaled."""
    made = torch.zeros_like(reward)
    for row in range(len(reward)):
        members = reward[group == group[row]]
        others = reward[(group == group[row]) & (torch.arange(len(reward)) != row)]
        if len(others):
            centred = (reward[row] - others).mean()
            made[row] = scale(centred, others, members) if len(others) > 1 else centred
    return made


def by_the_others_deviation(reward: Reward, group: Ids) -> Reward:
    return against_the_others(reward, group, lambda centred, others, members: centred / (others.std() + 1e-6))


def by_the_groups_deviation(reward: Reward, group: Ids) -> Reward:
    return against_the_others(reward, group, lambda centred, others, members: centred / (members.std() + 1e-6))


def one_pass_deviation(values: Reward) -> Tensor:
    """Return the root of (E[x²] - E[x]²) n / (n - 1)."""
    count = len(values)
    variance = (values.square().mean() - values.mean().square()) * (count / (count - 1))
    return variance.clamp(min=0.0).sqrt()


def unless_the_deviation_is_zero(reward: Reward, group: Ids) -> Reward:
    """Skip the division where the computed deviation is exactly zero."""

    def scale(centred: Tensor, others: Reward, members: Reward) -> Tensor:
        deviation = one_pass_deviation(others)
        return centred if deviation == 0 else centred / deviation

    return against_the_others(reward, group, scale)


def unless_the_others_agree(reward: Reward, group: Ids) -> Reward:
    """Skip the division where the others' rewards are all the same."""

    def scale(centred: Tensor, others: Reward, members: Reward) -> Tensor:
        return centred if others.max() == others.min() else centred / one_pass_deviation(others)

    return against_the_others(reward, group, scale)


def standardised(reward: Reward, group: Ids, deviation: Reward) -> Reward:
    """Centre by group and divide by each row's deviation, where it has one."""
    made = torch.zeros_like(reward)
    for name in set(group.tolist()):
        rows = group == name
        if reward[rows].max() > reward[rows].min():
            made[rows] = (reward[rows] - reward[rows].mean()) / deviation[rows]
    return made


def corrected(reward: Reward, group: Ids) -> Reward:
    """Return for each row its group's deviation with n / (n - 1)."""
    deviation = torch.zeros_like(reward)
    for name in set(group.tolist()):
        if (group == name).sum() > 1:
            deviation[group == name] = one_pass_deviation(reward[group == name])
    return deviation


def overwritten_after_the_loop(reward: Reward, group: Ids) -> Reward:
    """Compute the corrected deviations, then write sqrt(E[x²] - E[x]²) over all of them."""
    deviation = corrected(reward, group)
    same = (group[:, None] == group).to(reward.dtype)
    mean, square = same @ reward / same.sum(1), same @ reward.square() / same.sum(1)
    deviation[:] = (square - mean.square()).clamp(min=0.0).sqrt()
    return standardised(reward, group, deviation)


def corrected_in_the_loop(reward: Reward, group: Ids) -> Reward:
    return standardised(reward, group, corrected(reward, group))


SPECIMENS = (
    Specimen("ADV-03", group_semantics, by_the_others_deviation, by_the_groups_deviation),
    Specimen("ADV-04", group_semantics, unless_the_deviation_is_zero, unless_the_others_agree),
    Specimen(
        "ADV-07",
        partial(group_semantics, definition="standardised"),
        overwritten_after_the_loop,
        corrected_in_the_loop,
    ),
)
