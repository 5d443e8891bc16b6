"""The KL penalty from sampled tokens, where it enters the objective.

With ``l = logp - logp_ref`` of a sampled token or a whole response, k1 is ``l``, k2 is ``l² / 2`` and k3 is
``exp(-l) - 1 + l``. All three have a *value* near KL(policy ‖ reference). What they *ascend* in a loss is another
matter, since training differentiates them at fixed samples; each docstring says what, on-policy and with token sums
as weights. A *frozen-state* KL is ``Σ_s visits(s) KL(policy at s ‖ reference at s)`` with the visits held
fixed: it leaves out what a token does to the states after it.

Source of the names: Schulman, "Approximating KL divergence", 2020. Of the gradients: Shah et al., "A comedy of
estimators", 2025; the frozen-state ones are derived here.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def kl_in_reward(
    reward: Float[Tensor, " B"], logp: Float[Tensor, " B"], logp_ref: Float[Tensor, " B"], *, beta: float
) -> Float[Tensor, " B"]:
    """Return the detached return ``R_i = reward_i - beta (logp_i - logp_ref_i)``.

    ``logp_i - logp_ref_i`` (k1, at sequence level) estimates KL(policy ‖ reference) from samples of the policy.
    Inside a detached return its expected gradient is exactly that of ``-beta KL(policy ‖ reference)``,
    because the score has mean zero; the same k1 placed in the *loss* has expected gradient zero.

    A right response with log-ratio +0.5 returns 0.985 at beta 0.03, a wrong one with log-ratio -0.2
    returns +0.006: a positive return does not mean that the verifier accepted anything.

    Source: Stiennon et al., "Learning to summarize from human feedback", 2020, section 3.4.

    Args:
        reward: the verifier's score of each response.
        logp: the response's log-probability under the policy, summed over its tokens, in nats.
        logp_ref: the same under the frozen reference.
        beta: weight of the penalty, in reward per nat.

    Returns:
        Returns that carry no gradient.
    """
    return (reward - beta * (logp - logp_ref)).detach()


def k1(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return ``l``: unbiased in value. In a loss its expected gradient is exactly zero, ``E[∇logp] = 0``.

    Detached and in the return it ascends the KL itself (:func:`kl_in_reward`).
    """
    return log_ratio


def k2(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return ``l² / 2``, whose gradient is ``l ∇logp``.

    In a loss, of tokens: the gradient of the frozen-state KL(policy ‖ reference). Of whole responses: that of the KL.
    """
    return log_ratio.square() / 2


def k3(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return ``exp(-l) - 1 + l``: unbiased in value and never negative; its gradient is ``(1 - exp(-l)) ∇logp``.

    In a loss it goes the other way: of tokens the frozen-state KL(*reference ‖ policy*), of whole responses that
    sequence KL.
    """
    return torch.expm1(-log_ratio) + log_ratio


def ratio_k3(log_ratio: Float[Tensor, "*shape"], ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return k3 times the ratio of the policy to the sampler, with the gradient of both.

    The two parts add up to ``r l ∇logp`` in expectation. In a loss, of tokens: the gradient of the frozen-state
    KL(policy ‖ reference), at the visits of the sampler. Of whole responses with the ratio of the sequence: that of the
    KL, whatever policy drew them.

    Source: DeepSeek-AI, "DeepSeek-V3.2", 2025.

    Args:
        log_ratio: ``l``, with gradient.
        ratio: policy over sampler of the same token or response, with gradient; 1 on-policy.
    """
    return ratio * k3(log_ratio)


def straight_through(value: Float[Tensor, "*shape"], gradient: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return the value of one estimator with the gradient of another: ``value + gradient - sg[gradient]``.

    The logged number is that of ``value`` and says nothing about what is ascended.
    """
    return value.detach() + (gradient - gradient.detach())
