"""Probability ratios between two policies on the same tokens, and weights made of them.

A ratio carries the gradient of its numerator; the denominator is a constant. Its logarithm is the difference of
log-probabilities at positions that count, and nothing is clamped: a ratio that overflows is to be seen.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.core.masking import before, masked, token_counts
from assay.errors import InputError


def log_ratio(
    logp: Float[Tensor, "B T"], logp_other: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Return ``logp - sg[logp_other]`` in nats, 0 at masked positions."""
    return masked(logp, mask) - masked(logp_other, mask).detach()


def token_ratio(
    logp: Float[Tensor, "B T"], logp_old: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Return ``π(token) / q(token)`` for each token.

    It corrects the choice of the token and not the way that led to it: ``E_q[r_t A_t ∇logp_t]`` sums over the prefixes
    that q visits. That is the gradient of the surrogate of conservative policy iteration, and of the expected reward
    only where the two policies agree.

    Source: Kakade and Langford, "Approximately optimal approximate reinforcement learning", 2002.
    """
    return log_ratio(logp, logp_old, mask).exp()


def prefix_ratio(
    logp: Float[Tensor, "B T"], logp_old: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Return ``π(prefix) / q(prefix)`` of the tokens before each position; it turns q's visits into the policy's."""
    return before(log_ratio(logp, logp_old, mask)).exp()


def sequence_ratio(
    logp: Float[Tensor, "B T"], logp_old: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B 1"]:
    """Return ``π(response) / q(response)``, the product over all tokens.

    ``E_q[w f] = E_π[f]`` for every f, as long as q reaches what π does. Its variance grows with the length.

    Source: Precup, Sutton, Singh, "Eligibility traces for off-policy policy evaluation", 2000.
    """
    return log_ratio(logp, logp_old, mask).sum(1, keepdim=True).exp()


def geometric_ratio(
    logp: Float[Tensor, "B T"], logp_old: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B 1"]:
    """Return the geometric mean of the token ratios of each response, ``w^(1/n)``.

    Its gradient at equal policies is ``(1/n) ∇logp(response)``: the length divides. Away from there it is no importance
    weight, and an expectation under it is that of no policy.

    Source: Zheng et al., "Group sequence policy optimization" (GSPO), 2025.
    """
    return (log_ratio(logp, logp_old, mask).sum(1, keepdim=True) / token_counts(mask)).exp()


def truncated(ratio: Float[Tensor, "B T"], *, high: float) -> Float[Tensor, "B T"]:
    """Return ``sg[min(ratio, high)]``: exact while no ratio exceeds ``high``, biased towards the sampler beyond.

    Source: Ionides, "Truncated importance sampling", 2008.

    Raises:
        InputError: ``high`` is not positive.
    """
    if not high > 0:
        raise InputError(f"high = {high}: a truncated weight needs a positive cap")
    return ratio.detach().clamp(max=high)


def inside(ratio: Float[Tensor, "B T"], *, low: float, high: float) -> Float[Tensor, "B T"]:
    """Return ``sg[ratio]`` where it lies in ``[low, high]`` and 0 where it does not: such samples are left out.

    Source: Ling Team, "Every step evolves" (IcePop), 2025.

    Raises:
        InputError: the range is empty.
    """
    if not low <= high:
        raise InputError(f"low = {low}, high = {high}: the range of weights that stay is empty")
    outside = (ratio > high) | (ratio < low)  # a NaN is not outside, so that it surfaces
    return torch.where(outside, 0.0, ratio.detach())
