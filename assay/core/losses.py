"""Losses as terms and weights.

Every loss here is ``-(weights * terms).sum()``: the terms say *what* is optimised, the weights how it is
averaged. A loss is a function whose gradient is the point; its value is not a success rate and
is never reported as one.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.core.masking import masked


def weighted_loss(terms: Float[Tensor, " *shape"], weights: Float[Tensor, " *shape"]) -> Float[Tensor, ""]:
    """Return ``-(weights * terms).sum()``, the scalar to minimise.

    Args:
        terms: what is to be raised, carrying the gradient.
        weights: how each term counts, detached. :mod:`assay.core.weights` builds them.
    """
    return -(weights * terms).sum()


def reinforce_terms(logp: Float[Tensor, " B"], adv: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Return the score-function terms ``sg[A_i] logp_i``, one a response.

    On-policy, with an advantage whose baseline does not depend on response i, ``E[∇ Σ w_i sg[A_i] logp_i]`` is
    the gradient of the expected return, weighted by w.

    Source: Williams, "Simple statistical gradient-following algorithms", 1992.

    Args:
        logp: log-probability of each response, summed over its tokens, with gradient.
        adv: advantage of each response; any gradient it carries is cut here.
    """
    return adv.detach() * logp


def likelihood_terms(logp: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Return the supervised terms: the log-probability of each *full* response.

    The unit is the response: the sum over its tokens, not their mean. With one fixed length the two
    differ by a constant factor (2 for two tokens); with several lengths the mean would weigh a short response's
    tokens more than a long one's.
    """
    return logp


def score_terms(
    logp: Float[Tensor, "B T"], adv: Float[Tensor, "B _"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Return ``sg[A_t] logp_t`` for each token: :func:`reinforce_terms` before the sum over tokens.

    On-policy, with token sums as weights, the expected gradient is that of the return which A stands for. Drawn from
    another policy q it is ``Σ_y q(y) A ∇logp(y)``, the gradient of an advantage-weighted likelihood; with a
    weight inside A that turns q into the policy it is the on-policy one again.

    Source: Williams, "Simple statistical gradient-following algorithms", 1992.

    Args:
        logp: log-probability of each token, with gradient.
        adv: advantage of each token, or of each response, ``[B, 1]``; any gradient it carries is cut here.
        mask: true at the tokens that the policy chose.
    """
    return masked(adv, mask).detach() * masked(logp, mask)


def clipped_terms(
    ratio: Float[Tensor, "B _"], adv: Float[Tensor, "B _"], mask: Bool[Tensor, "B T"], *, low: float, high: float
) -> Float[Tensor, "B T"]:
    """Return ``min(r A, clip(r, 1 - low, 1 + high) A)``, the clipped surrogate; ``high > low`` is clip-higher.

    At ratio 1 the gradient is ``A ∇logp``, whatever the clip. Elsewhere it is ``r A ∇logp`` for the tokens with
    ``r < 1 + high`` where A > 0 and ``r > 1 - low`` where A < 0, and nothing for the rest. With the ratio of the whole
    sequence or its geometric mean, each token of a response carries the same term.

    Source: Schulman et al., "Proximal policy optimization algorithms", 2017; clip-higher: Yu et al., "DAPO", 2025.

    Args:
        ratio: of :mod:`assay.core.ratios`, with gradient; ``[B, 1]`` for one ratio a response.
        adv: advantage of each token, or of each response, ``[B, 1]``.
        mask: true at the tokens that the policy chose.
        low: how far below 1 a ratio may fall, in [0, 1].
        high: how far above 1 it may rise, at least 0.
    """
    inside, adv = masked(ratio, mask), masked(adv, mask).detach()
    return torch.minimum(inside * adv, inside.clamp(1 - low, 1 + high) * adv)


def dual_clip_terms(
    ratio: Float[Tensor, "B _"],
    adv: Float[Tensor, "B _"],
    mask: Bool[Tensor, "B T"],
    *,
    low: float,
    high: float,
    dual: float,
) -> Float[Tensor, "B T"]:
    """Return the clipped surrogate, bounded below by ``dual A`` where A < 0.

    As :func:`clipped_terms`, and a token with A < 0 whose ratio exceeds ``dual`` has no gradient either: a
    single bad token that the policy has come to prefer cannot dominate a batch.

    Source: Ye et al., "Mastering complex control in MOBA games with deep reinforcement learning", 2020.

    Args:
        ratio: of :mod:`assay.core.ratios`, with gradient.
        adv: advantage of each token, or of each response, ``[B, 1]``.
        mask: true at the tokens that the policy chose.
        low: how far below 1 a ratio may fall.
        high: how far above 1 it may rise.
        dual: largest ratio that still counts against a token, above 1.
    """
    terms, adv = clipped_terms(ratio, adv, mask, low=low, high=high), masked(adv, mask).detach()
    return torch.where(adv < 0, torch.maximum(terms, dual * adv), terms)


def clipped_weight_terms(
    logp: Float[Tensor, "B T"],
    ratio: Float[Tensor, "B T"],
    adv: Float[Tensor, "B _"],
    mask: Bool[Tensor, "B T"],
    *,
    low: float,
    high: float,
) -> Float[Tensor, "B T"]:
    """Return ``sg[clip(r, low, high)] A logp``: the weight is clipped, and no token loses its gradient.

    At ratio 1, with ``low <= 1 <= high``, the gradient is ``A ∇logp``. ``low`` and ``high`` bound the weight itself;
    they are not distances from 1. A constant baseline leaks where a weight is clipped: ``E_q[clip(r) ∇logp]`` is not
    zero.

    Source: MiniMax, "MiniMax-M1" (CISPO), 2025.

    Args:
        logp: log-probability of each token, with gradient.
        ratio: token ratios.
        adv: advantage of each token, or of each response, ``[B, 1]``.
        mask: true at the tokens that the policy chose.
        low: smallest weight.
        high: largest weight.
    """
    return score_terms(logp, masked(ratio, mask).detach().clamp(low, high) * masked(adv, mask), mask)
