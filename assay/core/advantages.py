"""Advantages: how much better a response did than the others of its group."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

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
