"""Losses as terms and weights.

Every loss here is ``-(weights * terms).sum()``: the terms say *what* is optimised, the weights how it is
averaged. A loss is a function whose gradient is the point; its value is not a success rate and
is never reported as one.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


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
