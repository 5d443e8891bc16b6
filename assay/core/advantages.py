"""Advantages: how much better a response did than the others of its group.

Each docstring states what ``(1/G) Σ_i A_i ∇logp_i`` is in expectation when the group is drawn from the policy itself,
``logp_i`` being summed over the tokens of response i.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.groups import above_smallest, constant_groups, group_size, group_sum, require_pairs
from assay.errors import InputError


def leave_one_out(returns: Float[Tensor, " B"], group: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Subtract from each return the mean of the *other* returns of its group.

    ``A_i = R_i - (1 / (G - 1)) Σ_{j≠i} R_j``. The baseline does not depend on response i, so that
    ``E[A_i ∇logp_i] = ∇E[R]`` without bias for every G ≥ 2. There is no division by a standard deviation.

    The group's smallest return is subtracted first. That changes nothing in exact arithmetic, and in
    floating point it makes the advantages of a constant group exactly zero.

    Source: Kool, van Hoof, Welling, "Buy 4 REINFORCE samples, get a baseline for free!", 2019.

    Args:
        returns: one return a response, in any order.
        group: the group each response belongs to, ids in ``[0, groups)``; sizes may differ.

    Returns:
        Advantages, shape and dtype of ``returns``; each group sums to zero up to rounding.

    Raises:
        InputError: a group has a single response.
    """
    sizes = torch.bincount(group)
    if bool((sizes == 1).any()):
        alone = int((sizes == 1).nonzero()[0])
        raise InputError(f"group {alone} has 1 response: leave-one-out needs at least 2 in every group")
    smallest = returns.new_zeros(len(sizes)).scatter_reduce(0, group, returns, "amin", include_self=False)
    shifted = returns - smallest[group]
    total = returns.new_zeros(len(sizes)).scatter_add(0, group, shifted)
    others = (sizes - 1)[group].to(returns.dtype)
    return shifted - (total[group] - shifted) / others


def loo_advantages(returns: Float[Tensor, " B"], group_size: int) -> Float[Tensor, " B"]:
    """Return leave-one-out advantages of a batch laid out group after group.

    As :func:`leave_one_out` with groups of one size in contiguous rows. ``[1, 0, 0, 0, 0, 0, 0, 0]`` gives
    ``[1, -1/7, ..., -1/7]``.

    Args:
        returns: ``B`` returns, the first ``group_size`` of them one group, and so on.
        group_size: responses in a group, at least 2.

    Raises:
        InputError: ``group_size`` is below 2 or does not divide ``B``.
    """
    if group_size < 2:
        raise InputError(f"group_size = {group_size}: leave-one-out needs at least 2 responses in a group")
    if len(returns) % group_size:
        raise InputError(f"{len(returns)} returns do not divide into groups of {group_size}")
    groups = len(returns) // group_size
    return leave_one_out(returns, torch.arange(groups).repeat_interleave(group_size))


def mean_centred(returns: Float[Tensor, " B"], group: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Subtract from each return the mean of its whole group, its own return included.

    Estimand: ``(G - 1) / G ∇E[R]``. The baseline contains 1/G of the response's own return; sample by sample this is
    leave-one-out times (G - 1) / G. A constant group gives exactly zero.

    Source: Liu et al., "Understanding R1-Zero-like training: a critical perspective" (Dr.GRPO), 2025.
    """
    shifted = above_smallest(returns, group)
    return shifted - group_sum(shifted, group) / group_size(group)


def std_scaled(returns: Float[Tensor, " B"], group: Int[Tensor, " B"], *, eps: float) -> Float[Tensor, " B"]:
    """Divide the mean-centred returns by ``std + eps``, the deviation of their group with Bessel's correction.

    Estimand, for a reward of 0 or 1 with success probability p: ``c_G(p) ∇p`` with ``c_G(p) = Σ_k C(G,k) p^k
    (1-p)^(G-k) k(G-k) / (G² p(1-p) (s_k + eps))`` and ``s_k = sqrt(k(G-k) / (G(G-1)))``; for large G that is
    ``∇ 2 arcsin √p``. For graded rewards it is the gradient of no function of the expected reward. A group whose
    largest and smallest return are equal gives exactly zero, whatever eps is.

    Source: Shao et al., "DeepSeekMath" (GRPO), 2024.

    Raises:
        InputError: a group has a single response.
    """
    require_pairs(group, "a deviation")
    centred = mean_centred(returns, group)
    deviation = (group_sum(centred.square(), group) / (group_size(group) - 1)).sqrt()
    constant = constant_groups(returns, group)
    return (centred / (deviation + eps).masked_fill(constant, 1.0)).masked_fill(constant, 0.0)


def success_scaled(reward: Float[Tensor, " B"], group: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Divide the mean-centred rewards by their group's mean reward, the fraction of successes; zero where that is 0.

    Estimand, for a reward of 0 or 1 with success probability p: ``Σ_{k=0}^{G-2} (1-p)^k ∇p``, the gradient of the
    expansion of ``log p`` in powers of 1-p up to order G - 1. For graded rewards there is no closed form.

    Source: Tajwar et al., "Maximum likelihood reinforcement learning" (MaxRL), 2026.

    Raises:
        InputError: a reward is negative.
    """
    if bool((reward < 0).any()):
        raise InputError(f"reward {float(reward.min()):.3g}: a fraction of successes needs rewards of at least 0")
    mean = group_sum(reward, group) / group_size(group)
    return (mean_centred(reward, group) / mean.masked_fill(mean == 0, 1.0)).masked_fill(mean == 0, 0.0)
