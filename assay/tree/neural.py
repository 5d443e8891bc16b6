"""Exact expected return of a neural policy and its gradient, over the whole tree of a problem.

The sum over responses is ``J = Σ_y p(y) F(y)`` with the return ``F(y) = r(y) - beta (logp(y) - logp_ref(y))``. The
policy reads the tree level by level (:mod:`assay.tree.sweep`), so that the cost grows with the inner nodes and not
with responses times length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.errors import InputError
from assay.tree.front import descend, opened
from assay.tree.levels import Level, Levels, count, responses_at, tree_levels
from assay.tree.prefix import Grammar, PrefixTree
from assay.tree.sweep import Sweep
from assay.types import IncrementalPolicy, Policy

PASS_NODES = 12_000
"""Inner nodes whose activations are held at once: about 6 kB a node and 64 units of width, in float32."""
TREE_NODES = 20_000_000
"""Most inner nodes to read: about two minutes at width 64. Beyond it, a sweep is refused rather than started."""

RewardFunction = Callable[[Int[Tensor, "K T"]], Float[Tensor, " K"]]


@dataclass(frozen=True)
class TreeReturn:
    """The exact objective of a policy on one problem.

    Attributes:
        value: expected return J.
        gradient: of J in each trained weight, by name; empty where it was not asked for.
        mass: total probability of all responses.
        responses: M.
        positions: tokens that the policy read, its prompt included.
    """

    value: float
    gradient: dict[str, Tensor]
    mass: float
    responses: int
    positions: int


def tree_return(
    policy: Policy,
    prompt: Int[Tensor, " S"],
    tree: Grammar | PrefixTree,
    reward: Float[Tensor, " M"] | RewardFunction,
    *,
    reference: Policy | None = None,
    beta: float = 0.0,
    gradient: bool = True,
    pass_nodes: int = PASS_NODES,
    budget: int = TREE_NODES,
) -> TreeReturn:
    """Return the exact expected return of a policy on one problem, and its gradient.

    Args:
        policy: an :class:`assay.types.IncrementalPolicy` that answers in the grammar's vocabulary. What it says is
            normalised over the tokens that the grammar allows.
        prompt: tokens of the problem.
        tree: all responses. A grammar of free tokens is walked without being written down.
        reward: of each response in the tree's order, or a function of the tokens of some responses of one length.
        reference: frozen policy of the KL penalty.
        beta: coefficient of the penalty.
        gradient: whether to differentiate.
        pass_nodes: inner nodes whose activations are held at once, at least 1.
        budget: most inner nodes to read.

    Raises:
        InputError: the probabilities do not sum to one, the return is not finite, the tree exceeds the budget, or
            arguments do not fit.
    """
    if (reference is None) != (beta == 0.0):
        raise InputError(f"beta {beta} with{'out' if reference is None else ''} a reference: give both or neither")
    if pass_nodes < 1:
        raise InputError(f"pass_nodes {pass_nodes}: a pass holds at least one node")
    levels = tree_levels(tree)
    nodes, responses = count(levels)
    if nodes > budget:
        raise InputError(f"{nodes:,} inner nodes to read: more than the budget of {budget:,}; raise it or shorten")
    if isinstance(reward, Tensor) and reward.shape != (responses,):
        raise InputError(f"{tuple(reward.shape)} rewards for {responses} responses: need one a response")
    trained = {name: weight for name, weight in policy.named_parameters() if gradient and weight.requires_grad}
    policies = tuple(_incremental(each) for each in (policy, reference) if each is not None)
    sums = _Sums(levels, reward, beta)
    with torch.set_grad_enabled(bool(trained)):
        made = Sweep(policies, levels, tuple(trained.values()), pass_nodes, sums.add).run(prompt, tree)
    _check_mass(sums.mass, sums.precision)
    if not math.isfinite(sums.value):
        raise InputError(f"the expected return is {sums.value}: a reward or a log-probability is not finite")
    return TreeReturn(sums.value, dict(zip(trained, made, strict=True)), sums.mass, responses, len(prompt) + nodes - 1)


def leaf_logp(
    policy: Policy, prompt: Int[Tensor, " S"], tree: Grammar | PrefixTree, *, pass_nodes: int = PASS_NODES
) -> Float[Tensor, " M"]:
    """Return the log-probability of each response in nats, in the tree's order.

    Where gradients are recorded, one graph spans the tree and its memory grows with it; elsewhere passes are released.

    Raises:
        InputError: the probabilities do not sum to one, or the policy does not fit.
    """
    levels, reader = tree_levels(tree), _incremental(policy)
    parts: list[tuple[int, Tensor]] = []
    if torch.is_grad_enabled():
        logp = torch.cat(descend(reader, opened(reader, prompt, tree), levels, range(len(levels)), 0, 1)[0])
    else:

        def keep(depth: int, low: int, high: int, logp: Tensor) -> Tensor:
            parts.append((_numbers(levels[depth], low, high).start, logp))
            return logp.new_zeros(())

        Sweep((reader,), levels, (), pass_nodes, keep).run(prompt, tree)
        logp = torch.cat([logp for _, logp in sorted(parts, key=lambda part: part[0])])
    _check_mass(float(logp.detach().double().exp().sum()), torch.finfo(logp.dtype).eps)
    return logp


@dataclass
class _Sums:
    """What the responses add up to.

    Attributes:
        levels: of the tree.
        reward: as :func:`tree_return` takes it.
        beta: coefficient of the KL penalty.
        value: sum of probability times return so far.
        mass: sum of probability so far.
        precision: of the numbers that are summed, 2 ** -52 in float64.
    """

    levels: Levels
    reward: Tensor | RewardFunction
    beta: float
    value: float = 0.0
    mass: float = 0.0
    precision: float = 0.0

    def add(self, depth: int, low: int, high: int, logp: Tensor, logp_ref: Tensor | None = None) -> Tensor:
        """Return the share of the objective of the responses that end after some nodes, and count it."""
        if not len(logp):
            return logp.new_zeros(())
        returns = self._rewards(depth, low, high).to(logp.dtype)
        if logp_ref is not None:
            returns = returns - self.beta * (logp - logp_ref)
        probability = logp.exp()
        share = (probability * returns).sum()
        self.mass += float(probability.detach().sum())
        self.value += float(share.detach())
        self.precision = torch.finfo(logp.dtype).eps
        return share

    def _rewards(self, depth: int, low: int, high: int) -> Tensor:
        if isinstance(self.reward, Tensor):
            return self.reward[_numbers(self.levels[depth], low, high)]
        responses = responses_at(self.levels, depth, low, high)
        made = self.reward(responses)
        if made.shape != (len(responses),):
            raise InputError(f"the reward of {len(responses)} responses has shape {tuple(made.shape)}: return one each")
        return made


def _numbers(level: Level, low: int, high: int) -> slice:
    """Return the numbers of the responses that end after the nodes from ``low`` to ``high`` of a level."""
    return slice(level.first + level.leaves.before(low), level.first + level.leaves.before(high))


def _incremental(policy: Policy) -> IncrementalPolicy:
    if not isinstance(policy, IncrementalPolicy):
        raise InputError(f"{type(policy).__name__} has no read and extend: use tree_logp, which needs only a forward")
    return policy


def _check_mass(mass: float, precision: float) -> None:
    """Refuse a total probability that is not one to half the digits."""
    tolerance = math.sqrt(precision)
    if not abs(mass - 1) <= tolerance:
        raise InputError(
            f"response probabilities sum to {mass:.12g}, not to one within {tolerance:.1g}: the policy's logits are "
            "not finite somewhere, or its read and extend break their contract"
        )
