"""Leave-one-out with less variance from the same samples: how often a response repeats is averaged out.

Given the set D of the distinct responses of a group, how often each was drawn says nothing more about the rewards, and
the policy knows every response's probability. So the leave-one-out estimate, a sum over pairs of draws::

    g = 1/(G(G-1)) Σ_{a<b ∈ D} c_a c_b (R_a - R_b) (s_a - s_b),      c = counts,  s = ∇logp,

is replaced by its average over all counts that give D (Rao and Blackwell). It keeps its expectation, and its variance
is never larger, whatever the rewards, the policy and G. With ``e = G - |D|`` duplicates and ``φ(u) = (exp(u) - 1) / u``
the average that is needed is a ratio of two coefficients of ``x^e``, all of whose parts are positive::

    E[c_a c_b | D] = [x^e] exp((p_a + p_b) x) Π_{z ∈ D∖ab} φ(p_z x)  /  [x^e] Π_{z ∈ D} φ(p_z x) .

It is leave-one-out where nothing repeats, and always at G = 2 and 3, where D leaves no choice of c_a c_b. The figures
are those of ``benchmarks/variance.py``.

Sources: Rao, 1945, and Blackwell, 1947; the idea for policies that repeat themselves: Liu et al., "Rao-Blackwellized
stochastic gradients for discrete distributions", 2019, and Kool, van Hoof, Welling, "Estimating gradients for discrete
random variables by sampling without replacement", 2020. The closed form for draws with replacement is derived here.
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
    """Return the advantages of leave-one-out, averaged over the counts of equal responses, which share theirs.

    ``A_i = Σ_b E[c_a c_b | D] (R_a - R_b) / ((G - 1) c_a)`` for a row i whose response a was drawn c_a times.

    Estimand: that of leave-one-out, ``∇E[R]`` without bias for every G ≥ 2, provided that the return depends on the
    response alone and that ``logp`` is of the policy that drew it. A constant group gives exactly zero.

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
    out, sizes = torch.empty_like(shifted), torch.bincount(group)
    for rows in torch.split(torch.argsort(group, stable=True), sizes[sizes > 0].tolist()):
        _, member, count = torch.unique(response[rows], return_inverse=True, return_counts=True)
        first = torch.empty_like(count).scatter_(0, member.flip(0), rows.flip(0))
        reward = shifted[first]
        if not torch.allclose(shifted[rows], reward[member], equal_nan=True):
            raise InputError(
                f"group {int(group[rows[0]])} has equal responses with different returns: duplicates can be averaged "
                "only where the return depends on the response alone"
            )
        lead = (expected_pairs(chance[first], len(rows)) * (reward[:, None] - reward[None, :])).sum(1)
        out[rows] = (lead / (len(rows) - 1) / count)[member]
    return out


def expected_pairs(logp: Float[Tensor, " D"], size: int) -> Float[Tensor, "D D"]:
    """Return ``E[c_a c_b | D]`` for a ≠ b, the expected product of two counts when ``size`` draws gave just these D.

    Args:
        logp: log-probability of each distinct response; a common shift changes nothing.
        size: draws, at least D.

    Returns:
        Symmetric, with a diagonal of zeros.
    """
    distinct, spare = len(logp), size - len(logp)
    if spare == 0:
        return 1 - torch.eye(distinct, dtype=logp.dtype, device=logp.device)
    power = torch.arange(spare + 1, dtype=logp.dtype, device=logp.device)
    raised = (logp - logp.max()).exp()[:, None] ** power
    each, both = raised / torch.lgamma(power + 2).exp(), raised / torch.lgamma(power + 1).exp()
    after = [(power == 0).to(logp.dtype)]  # products of φ over the last 0, 1, ... responses
    for row in each.flip(0):
        after.append(_product(after[-1], row))
    out, so_far = torch.zeros(distinct, distinct, dtype=logp.dtype, device=logp.device), after[0]
    for a in range(distinct):
        running = _product(so_far, both[a])
        for b in range(a + 1, distinct):
            rest = _product(both[b], after[distinct - 1 - b])
            out[a, b] = out[b, a] = (running * rest.flip(0)).sum()
            running = _product(running, each[b])
        so_far = _product(so_far, each[a])
    return out / after[-1][spare]


def _product(a: Float[Tensor, " E"], b: Float[Tensor, " E"]) -> Float[Tensor, " E"]:
    """Return the product of two power series, cut off at their common length."""
    longest = len(a) - 1
    return torch.nn.functional.conv1d(a[None, None], b.flip(0)[None, None], padding=longest)[0, 0, : longest + 1]
