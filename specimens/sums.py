"""The lines that several families share."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def summed(values: Float[Tensor, "B T"], mask: Float[Tensor, "B T"]) -> Float[Tensor, " B"]:
    """Sum each response's tokens."""
    return torch.where(mask > 0, values, 0.0).sum(1)


def k3(gap: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return ``exp(gap) - 1 - gap`` of ``gap = log ref - log policy``."""
    return gap.exp() - 1 - gap


def reinforce(logp: Float[Tensor, "B T"], adv: Float[Tensor, " B"], mask: Float[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Return the loss that ascends the expected reward on-policy."""
    return -(adv * summed(logp, mask)).mean()


def ratio_reinforce(
    logp: Float[Tensor, "B T"], logp_old: Float[Tensor, "B T"], adv: Float[Tensor, " B"], mask: Float[Tensor, "B T"]
) -> Float[Tensor, ""]:
    """Return the loss with an unclipped ratio of each token: it ascends the surrogate under the sampler's visits."""
    return -(adv * summed((logp - logp_old).exp(), mask)).mean()
