"""Advantages whose expected gradient is that of pass@k: the best of k tries."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.advantages import leave_one_out
from assay.core.groups import above_smallest
from assay.errors import InputError


def pass_at_k(reward: Float[Tensor, " B"], group: Int[Tensor, " B"], *, k: int) -> Float[Tensor, " B"]:
    """Return advantages for the expected best reward of k tries, from groups of at least k.

    ``A_i = G / C(G,k) Σ_{S∋i, |S|=k} (max_S R - max_{S∖i} R)``, over the subsets of the group. What is subtracted does
    not depend on response i, so that ``(1/G) Σ_i A_i ∇logp_i`` has the expectation ``∇E[max(R_1, ..., R_k)]``, the
    gradient of pass@k for a reward of 0 or 1, for every G ≥ k. For k = 1 there is no other response in S, and the
    leave-one-out baseline takes its place.

    With the group sorted, i at rank j is the best of S and m < j the second best in ``C(m-1, k-2)`` subsets, which
    makes the sum linear in G.

    Source: Walder and Karkhanis, "Pass@K policy optimization", 2025.

    Args:
        reward: of each response.
        group: the group each belongs to; sizes may differ.
        k: tries, at least 1.

    Raises:
        InputError: k is below 1 or above the size of a group.
    """
    sizes = torch.bincount(group)
    smallest = int(sizes[sizes > 0].min())
    if not 1 <= k <= smallest:
        raise InputError(f"k = {k}: pass@k needs k of at least 1 and k responses in every group; one has {smallest}")
    if k == 1:
        return leave_one_out(reward, group)
    shifted = above_smallest(reward, group)
    order = torch.argsort(shifted, stable=True)
    order = order[torch.argsort(group[order], stable=True)]
    out = torch.empty_like(reward)
    for rows in torch.split(order, sizes[sizes > 0].tolist()):
        out[rows] = _sorted_group(shifted[rows], k)
    return out


def best_minus_second(reward: Float[Tensor, " B"], group: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Give the best response of each group G times its lead over the second best, the others nothing.

    What :func:`pass_at_k` is at k = G. Estimand: ``∇E[max of the group]``; for a reward of 0 or 1 with success
    probability p that is ``G (1-p)^(G-1) ∇p``. Two equal best responses have no lead.

    Source: Walder and Karkhanis, "Pass@K policy optimization", 2025.

    Raises:
        InputError: a group has a single response.
    """
    sizes = torch.bincount(group)
    out = torch.zeros_like(reward)
    for number in sizes.nonzero()[:, 0].tolist():
        rows = (group == number).nonzero()[:, 0]
        if len(rows) < 2:
            raise InputError(f"group {number} has 1 response: a second best needs at least 2 in every group")
        top, at = reward[rows].topk(2)
        out[rows[at[0]]] = len(rows) * (top[0] - top[1])
    return out


def _sorted_group(reward: Float[Tensor, " G"], k: int) -> Float[Tensor, " G"]:
    """Return the advantages of one group whose rewards ascend."""
    size = len(reward)
    counts = [math.comb(rank, k - 2) * size / math.comb(size, k) for rank in range(size)]
    weight = torch.tensor(counts, dtype=reward.dtype, device=reward.device)
    below = weight.cumsum(0) - weight
    return reward * below - ((weight * reward).cumsum(0) - weight * reward)
