"""Exact expectation and variance of a group estimator, from the loss alone.

Training applies the gradient of a loss *at fixed samples*. Its expectation is

    E[∇L] = Σ_groups P(group) Σ_{i,t} (∂L/∂logp_it) ∇logp_it ,

so it is enough to collect ``∂L/∂logp`` for every group of responses and to push the weighted sum through the
policy once. A loss that does not depend on the order of a group needs one evaluation for each multiset of
responses, with a multinomial weight: for 9 responses and groups of 4 that is 495 evaluations in place of 6,561.
Whether it depends on the order is checked on the way, not assumed.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.errors import InputError

GroupGradient = Callable[[Int[Tensor, " G"]], Float[Tensor, "G T"]]
"""Given the responses of a group by number, return ``∂L/∂logp`` at each of their tokens."""

EVALUATION_BUDGET = 200_000
ORDER_TOLERANCE = 1e-9
_ORDERS_TRIED = 25


@dataclass(frozen=True)
class GroupMoments:
    """Exact moments of a group's gradient estimate.

    Attributes:
        coefficient: expected ``∂L/∂logp`` summed over the group's members, one entry a response and token,
            ``[M, T]``: the expected gradient is ``Σ coefficient ∇logp``.
        mean: that expectation over the parameters, ``[D]``; minus it is what is ascended.
        variance: trace of the estimate's covariance.
        evaluations: how many groups the loss was evaluated on.
    """

    coefficient: Float[Tensor, "M T"]
    mean: Float[Tensor, " D"]
    variance: float
    evaluations: int


def multisets(responses: int, size: int) -> Iterator[tuple[list[int], int]]:
    """Yield each multiset of ``size`` responses with the number of ordered groups it stands for."""
    for members in itertools.combinations_with_replacement(range(responses), size):
        orders = math.factorial(size)
        for count in Counter(members).values():
            orders //= math.factorial(count)
        yield list(members), orders


def group_moments(
    gradient: GroupGradient,
    logp: Float[Tensor, " M"],
    jacobian: Float[Tensor, "M T D"],
    *,
    size: int,
    budget: int = EVALUATION_BUDGET,
) -> GroupMoments:
    """Return the exact mean and variance of a loss's gradient over all groups of ``size`` responses to one problem.

    Args:
        gradient: evaluates the loss on one group.
        logp: log-probability of each response under the policy that samples them, in nats.
        jacobian: ``∇logp`` of each token of each response under the policy that is trained.
        size: responses in a group, at least 1.
        budget: most groups to evaluate.

    Raises:
        InputError: there are more groups than ``budget``, or the loss depends on the order of a group.
    """
    responses, length, weights = jacobian.shape
    count = math.comb(responses + size - 1, size)
    if count > budget:
        raise InputError(f"{count:,} groups of {size} out of {responses} responses: more than the budget of {budget:,}")
    coefficient = torch.zeros(responses, length, dtype=logp.dtype)
    mean, square = torch.zeros(weights, dtype=logp.dtype), 0.0
    check_every = max(1, count // _ORDERS_TRIED)
    for number, (members, orders) in enumerate(multisets(responses, size)):
        group = torch.tensor(members)
        chance = orders * math.exp(float(logp[group].sum()))
        slope = gradient(group)
        if number % check_every == 0:
            _check_order(gradient, group, slope)
        coefficient.index_add_(0, group, chance * slope)
        estimate = torch.einsum("gt,gtd->d", slope, jacobian[group])
        mean += chance * estimate
        square += chance * float(estimate @ estimate)
    return GroupMoments(coefficient, mean, square - float(mean @ mean), count)


def _check_order(gradient: GroupGradient, group: Int[Tensor, " G"], slope: Float[Tensor, "G T"]) -> None:
    """Evaluate the group backwards; each member's share must come out the same."""
    reversed_slope = gradient(group.flip(0)).flip(0)
    gap = float((slope - reversed_slope).abs().max())
    if not gap <= ORDER_TOLERANCE * (1 + float(slope.abs().max())):
        raise InputError(
            f"the loss depends on the order of a group: turning round responses {group.tolist()} changes a member's "
            f"gradient by {gap:.3g}"
        )
