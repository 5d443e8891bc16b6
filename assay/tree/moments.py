"""Exact mean and variance of the leave-one-out gradient estimator, for any group size, without enumerating groups.

Over a group of G the estimator is ``g = (1/G) Σ_i (F_i - mean_{j≠i} F_j) s_i`` with the score ``s = ∇logp(y)``
and the return F. Written over pairs it is a U-statistic, ``g = C(G,2)^-1 Σ_{i<j} h(y_i, y_j)``, with the
symmetric kernel::

    h(y, y') = (F - F') (s - s') / 2 .

Its variance follows from Hoeffding's decomposition with two numbers that do not depend on G::

    tr Var[g] = C(G,2)^-1 (2 (G - 2) ζ1 + ζ2),
    ζ1 = tr Var E[h | y] = E|(F - J) s - g|² / 4,      ζ2 = tr Var h = E|h|² - |E h|².

Source: Hoeffding, "A class of statistics with asymptotically normal distribution", 1948; the pair form of the
leave-one-out estimator is rewritten here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn


@dataclass(frozen=True)
class Moments:
    """Exact moments of the leave-one-out estimator on one problem.

    Attributes:
        mean: its expectation, the gradient of the objective, ``[D]``.
        zeta1: ζ1 above, in squared gradient units.
        zeta2: ζ2 above.
    """

    mean: Float[Tensor, " D"]
    zeta1: float
    zeta2: float

    def variance(self, group_size: int) -> float:
        """Return the trace of the estimator's covariance for one group of ``group_size`` ≥ 2."""
        pairs = group_size * (group_size - 1) / 2
        return (2 * (group_size - 2) * self.zeta1 + self.zeta2) / pairs


def scores(logp: Float[Tensor, " M"], policy: nn.Module) -> Float[Tensor, "M D"]:
    """Return ``∇logp(y)`` of each trajectory over all parameters, in their order, flattened.

    Args:
        logp: log-probability of each trajectory, on a graph that reaches the parameters.
        policy: whose parameters to differentiate.
    """
    parameters = tuple(policy.parameters())
    rows = [torch.autograd.grad(value, parameters, retain_graph=True) for value in logp]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])


def leave_one_out_moments(
    logp: Float[Tensor, " M"], returns: Float[Tensor, " M"], score: Float[Tensor, "M D"]
) -> Moments:
    """Return the exact moments of the leave-one-out estimator on one problem.

    Args:
        logp: log-probability of each trajectory; they cover the whole tree.
        returns: the detached return F of each trajectory at the same weights.
        score: ``∇logp`` of each trajectory, from :func:`scores`.
    """
    p = logp.detach().exp()
    centred = returns - (p * returns).sum()
    weighted = centred[:, None] * score
    mean = p @ weighted
    zeta1 = 0.25 * float(p @ (weighted - mean).square().sum(1))
    gram = score @ score.T
    norms = gram.diagonal()
    distance = norms[:, None] + norms[None, :] - 2 * gram
    gap = (returns[:, None] - returns[None, :]).square()
    zeta2 = 0.25 * float(p @ (gap * distance) @ p) - float(mean @ mean)
    return Moments(mean, zeta1, zeta2)
