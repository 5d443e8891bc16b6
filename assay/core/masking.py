"""Positions that hold no token of the policy's own. They are cut out before any arithmetic, not multiplied by zero.

Zero times NaN is NaN, in the value and again in the gradient. What stands under a mask, padding or a token that
the environment spoke, may be anything; :func:`masked` replaces it first. A NaN at a position that counts stays and
surfaces in the loss.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def masked(values: Float[Tensor, "B _"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return the values where the mask is true and 0 elsewhere; no gradient flows to the rest."""
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


def token_counts(mask: Bool[Tensor, "B T"]) -> Int[Tensor, "B 1"]:
    """Return how many tokens of each row count, at least 1, so that an empty row divides by something."""
    return mask.sum(1, keepdim=True).clamp(min=1)


def at_last_token(values: Float[Tensor, " B"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return the values, each at the last position of its row that counts, and 0 elsewhere."""
    remaining = mask.flip(1).cumsum(1).flip(1)
    return masked(values[:, None], mask & (remaining == 1))


def to_go(values: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return the sum of the values at each position and after it."""
    return values.flip(1).cumsum(1).flip(1)


def before(values: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return the sum of the values before each position, itself excluded."""
    return values.cumsum(1) - values
