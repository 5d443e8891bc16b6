"""Fewer surprises from the same samples: leave-one-out in which equal responses are counted by their probability.

A group of G samples is known by the set D of its distinct responses: how often each was drawn says nothing about
rewards, and the policy knows each probability. Two steps use that.

*Sum and sample.* For each sample i, what the others have already shown, the set D' of their distinct responses, is
summed exactly, and i itself counts only if it is new::

    g_i = [y_i ∉ D'] (R_i - b') s_i + Σ_{y ∈ D'} p(y) (R(y) - b') s(y),      b' = mean of R over D',

with ``s = ∇logp``. Given the others, ``E[g_i] = Σ_y p(y) (R(y) - b') s(y) = ∇E[R]``, for any b' made of the others.

*Rao-Blackwell.* ``(1/G) Σ_i g_i`` is then averaged over all the counts that give D. ``g_i`` depends on the counts
only by whether y_i was drawn once, so that the average needs ``P(y drawn once | D)`` alone. With e = G - |D| duplicates
and ``φ(u) = (exp(u) - 1) / u`` that is a ratio of two coefficients of ``x^e``, all of whose parts are positive::

    P(y drawn once | D) = [x^e] Π_{z ∈ D∖y} φ(p(z) x)  /  [x^e] Π_{z ∈ D} φ(p(z) x) .

Without duplicates and with small probabilities this *is* leave-one-out; at G = 2 it is leave-one-out always. Where
responses are short and repeat, ``benchmarks/variance.py`` has the figures, and where it is worse.

Sources: Liang et al., "Memory augmented policy optimization", 2018; Liu et al., "Rao-Blackwellized stochastic gradients
for discrete distributions", 2019; Kool, van Hoof, Welling, "Estimating gradients for discrete random variables by
sampling without replacement", 2020. The closed form for samples with replacement is derived here.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.groups import above_smallest, require_pairs
from assay.errors import InputError


def response_ids(tokens: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"], group: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Return a number for each row, the same exactly for equal responses of one group.

    Args:
        tokens: of each response; anything where masked.
        mask: true at the tokens of the response.
        group: the group each row belongs to.
    """
    rows = torch.cat([group[:, None], torch.where(mask, tokens, -1)], dim=1)
    ids: Tensor = torch.unique(rows, dim=0, return_inverse=True)[1]
    return ids


def distinct_leave_one_out(
    returns: Float[Tensor, " B"],
    logp: Float[Tensor, " B"],
    response: Int[Tensor, " B"],
    group: Int[Tensor, " B"],
) -> Float[Tensor, " B"]:
    """Return advantages for which ``(1/G) Σ_i A_i ∇logp_i`` is the estimate above; equal responses share theirs.

    Estimand: ``∇E[R]`` without bias for every G ≥ 2, provided that the return depends on the response alone and that
    ``logp`` is of the policy that drew it. A constant group gives exactly zero.

    Args:
        returns: one a response, the same for equal responses.
        logp: log-probability with which each whole response was drawn, in nats.
        response: equal exactly for equal responses of a group; from :func:`response_ids`.
        group: the group each row belongs to; sizes may differ.

    Raises:
        InputError: a group has a single response, or equal responses have different returns.
    """
    require_pairs(group, "leave-one-out")
    shifted, chance = above_smallest(returns, group).detach(), logp.detach()
    out = torch.empty_like(shifted)
    sizes = torch.bincount(group)
    for rows in torch.split(torch.argsort(group, stable=True), sizes[sizes > 0].tolist()):
        _, member, count = torch.unique(response[rows], return_inverse=True, return_counts=True)
        first = torch.empty_like(count).scatter_(0, member.flip(0), rows.flip(0))
        if not torch.allclose(shifted[rows], shifted[first][member], equal_nan=True):
            raise InputError(
                f"group {int(group[rows[0]])} has equal responses with different returns: duplicates can be averaged "
                "only where the return depends on the response alone"
            )
        out[rows] = (len(rows) * _coefficients(shifted[first], chance[first], len(rows)) / count)[member]
    return out


def drawn_once(logp: Float[Tensor, " D"], size: int) -> Float[Tensor, " D"]:
    """Return the probability that each of D responses was drawn once, given that ``size`` draws gave just these D.

    Args:
        logp: log-probability of each distinct response; a common shift changes nothing.
        size: draws, at least D.
    """
    spare = size - len(logp)
    if spare == 0:
        return torch.ones_like(logp)
    power = torch.arange(spare + 1, dtype=logp.dtype, device=logp.device)
    series = ((logp - logp.max()).exp()[:, None] ** power) / torch.lgamma(power + 2).exp()
    one = torch.zeros_like(power)
    one[0] = 1.0
    left, right = [one], [one]
    for row in series:
        left.append(_product(left[-1], row))
    for row in series.flip(0):
        right.append(_product(right[-1], row))
    without = torch.stack([_product(left[y], right[len(logp) - 1 - y])[spare] for y in range(len(logp))])
    return without / left[-1][spare]


def _coefficients(reward: Float[Tensor, " D"], logp: Float[Tensor, " D"], size: int) -> Float[Tensor, " D"]:
    """Return what multiplies the score of each distinct response."""
    once, p, count = drawn_once(logp, size) / size, logp.exp(), len(reward)
    others = (reward.sum() - reward) / max(count - 1, 1)
    summed = p * (reward * once.sum() - (once * others).sum() - once * (reward - others))
    return once * (reward - others) + summed + (1 - once.sum()) * p * (reward - reward.mean())


def _product(a: Float[Tensor, " E"], b: Float[Tensor, " E"]) -> Float[Tensor, " E"]:
    """Return the product of two power series, cut off at their common length."""
    longest = len(a) - 1
    return torch.nn.functional.conv1d(a[None, None], b.flip(0)[None, None], padding=longest)[0, 0, : longest + 1]
