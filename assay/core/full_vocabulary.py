"""KL and entropy of the next-token distribution, exact from all its logits instead of from the sampled token.

Logits of ``-inf`` are tokens that the grammar or the sampler forbids; they count as nothing.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.core.masking import masked
from assay.core.ratios import prefix_ratio


def token_kl(
    logits: Float[Tensor, "B T V"], logits_ref: Float[Tensor, "B T V"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Return ``KL(policy ‖ reference)`` of the next token before each position, in nats, with gradient; 0 where masked.

    In a loss, with token sums as weights, the expected gradient is that of the frozen-state KL, at the visits of
    whatever policy drew the responses. It is k2 with the choice of the token averaged out: no noise but the visits'.
    A token that the policy can choose and the reference cannot makes it infinite.

    Args:
        logits: of the policy along each response; those at t predict token t.
        logits_ref: of the reference.
        mask: true at the tokens that the policy chose.
    """
    logp, logp_ref = _next_logp(logits, mask), _next_logp(logits_ref, mask).detach()
    return _mean_under(logp, logp - logp_ref)


def sequence_kl_terms(
    token_kl: Float[Tensor, "B T"],
    logp: Float[Tensor, "B T"],
    logp_old: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
) -> Float[Tensor, "B T"]:
    """Return ``w_{<t} KL_t``, the exact KL at each state times the ratio of the way that led there.

    With token sums as weights both the expected value and the expected gradient are those of the sequence's
    KL(policy ‖ reference), whatever policy q drew the responses: by the chain rule of the KL, ``KL = E_π[Σ_t KL_t] =
    E_q[Σ_t w_{<t} KL_t]``. The ratio ``w_{<t}`` of the tokens before t carries the gradient of the visits, and q none.
    On-policy every ratio is 1, and the gradient is ``∇KL_t`` plus ``KL_t`` times the score of all tokens before: k1 in
    the reward-to-go, with the choice of every later token averaged out.

    Its own variance is a few hundredths of that of k1 in the reward (``benchmarks/variance.py``). In the sum with a
    reward it can be worse: where reward and log-ratio rise together, the noise of k1 cancels a part of the reward's.

    Args:
        token_kl: exact KL before each token, with gradient, as :func:`token_kl` gives it.
        logp: of each sampled token under the policy, with gradient.
        logp_old: the same under the policy that drew them.
        mask: true at the tokens that the policy chose.
    """
    return prefix_ratio(logp, logp_old, mask) * masked(token_kl, mask)


def token_entropy(logits: Float[Tensor, "B T V"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return the entropy of the next token before each position, in nats, with gradient; 0 where masked.

    As a bonus in a loss, with token sums as weights, the expected gradient is that of the frozen-state entropy: each
    state's own, not that of the states which a token leads to.

    Args:
        logits: of the policy along each response.
        mask: true at the tokens that the policy chose.
    """
    logp = _next_logp(logits, mask)
    return masked(-_mean_under(logp, logp), mask)


def _next_logp(logits: Float[Tensor, "B T V"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
    """Return normalised log-probabilities; uniform, and without gradient, where masked."""
    return torch.where(mask[..., None], logits, torch.zeros((), dtype=logits.dtype, device=logits.device)).log_softmax(
        -1
    )


def _mean_under(logp: Float[Tensor, "B T V"], values: Float[Tensor, "B T V"]) -> Float[Tensor, "B T"]:
    """Return ``Σ_v p(v) value(v)``; a forbidden token counts as nothing."""
    forbidden = logp == float("-inf")
    return (logp.exp() * values.masked_fill(forbidden, 0.0)).sum(-1)
