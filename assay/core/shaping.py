"""What happens to rewards before they become advantages: length, groups without signal, responses without a score."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.groups import constant_groups
from assay.errors import InputError


def overlong_penalty(
    lengths: Int[Tensor, " B"], *, longest: int, cache: int, dtype: torch.dtype = torch.float32
) -> Float[Tensor, " B"]:
    """Return what is added to the reward of a long response, from 0 down to -1.

    Zero up to ``longest - cache`` tokens, ``(longest - cache - length) / cache`` up to ``longest``, and -1 beyond.
    It changes the objective: what is ascended is the expected reward plus the expected penalty.

    Source: Yu et al., "DAPO", 2025, soft overlong punishment.

    Args:
        lengths: tokens of each response.
        longest: length from which the penalty is whole.
        cache: tokens over which it grows, in ``[1, longest]``.
        dtype: of the penalty.

    Raises:
        InputError: ``cache`` is out of range.
    """
    if not 1 <= cache <= longest:
        raise InputError(f"overlong cache = {cache}: need 1 <= cache <= {longest}, the longest length")
    return ((longest - cache - lengths).to(dtype) / cache).clamp(-1.0, 0.0)


def informative(reward: Float[Tensor, " B"], group: Int[Tensor, " B"]) -> Bool[Tensor, " B"]:
    """Return the rows that dynamic sampling keeps: those whose group has two different rewards.

    A dropped group has zero advantages, so dropping changes the counts alone. With leave-one-out and as many groups as
    before drawn in their place, the expected update keeps its direction and grows by 1/Z, where Z is the chance that a
    group is kept: for a reward of 0 or 1, the mean over problems of ``1 - p^G - (1-p)^G``.

    Source: Yu et al., "DAPO", 2025, dynamic sampling.
    """
    return ~constant_groups(reward, group)


def scores(values: Sequence[float | None], *, dtype: torch.dtype = torch.float32) -> Float[Tensor, " B"]:
    """Return verifier scores as a tensor; None, a response that could not be scored, becomes NaN."""
    return torch.tensor([float("nan") if value is None else value for value in values], dtype=dtype)


def scorable(reward: Float[Tensor, " B"], group: Int[Tensor, " B"], *, least: int = 2) -> Bool[Tensor, " B"]:
    """Return the rows that have a score, in groups with at least ``least`` of them; a NaN reward leaves its group.

    Unscorable is neither right nor wrong. Where it depends on the response alone and the mean is over the K
    scorable responses of a group, leave-one-out among them has the expectation ``P(K ≥ 2) ∇E[R | scorable]``: the
    policy is neither drawn to an unscorable response nor pushed away from it.

    Args:
        reward: of each response, NaN where there is none.
        group: the group each belongs to.
        least: scorable responses that a group must have to stay.
    """
    has = ~reward.isnan()
    return has & (torch.bincount(group, weights=has.to(torch.float64))[group] >= least)
