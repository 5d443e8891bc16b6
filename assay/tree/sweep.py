"""The recursion that sums over a whole tree with a policy that reads it step by step, and differentiates the sum.

Each token of the tree is read once; leaves are not read, since a leaf is an entry in its parent's distribution.

Memory stays bounded because the graph is cut. A pass reads levels until it is full; the nodes that it reached last
become the cut. What hangs from a few of them at a time is swept by a pass of its own, cut again where needed,
differentiated and released, and leaves its share of the gradient at the cut. When all are done, one backward carries
what gathered there up to the weights. Nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor, nn

from assay.tree.front import Front, descend, opened
from assay.tree.levels import Levels
from assay.tree.prefix import Grammar, PrefixTree
from assay.types import IncrementalPolicy

Made = TypeVar("Made")


@dataclass(frozen=True)
class Sweep:
    """The recursion over passes.

    Attributes:
        policies: the one that is trained, and its reference if there is one.
        levels: of the tree.
        weights: to differentiate by; none where only values are wanted.
        budget: inner nodes a pass.
        consume: given a depth, a range of its inner nodes and, under each policy, the log-probability of the
            responses that end after them, returns their share of the objective.
    """

    policies: tuple[IncrementalPolicy, ...]
    levels: Levels
    weights: tuple[nn.Parameter, ...]
    budget: int
    consume: Callable[..., Tensor]

    def run(self, prompt: Int[Tensor, " S"], tree: Grammar | PrefixTree) -> list[Tensor]:
        """Sweep the whole tree and return the gradient in the weights."""
        fronts = _each(lambda policy: opened(policy, prompt, tree), self.policies)
        return self._carried(fronts[0].tensors, self._below(fronts, 0, 0, 1), self.weights)

    def _below(self, fronts: list[Front], depth: int, low: int, high: int) -> list[Tensor]:
        """Sweep what hangs from consecutive nodes, off the graph that leads to them.

        Returns:
            The gradient in the weights, then in each tensor of the trained policy's front.
        """
        cut = [front.cut() for front in fronts]
        inputs = (*self.weights, *cut[0].tensors) if self.weights else ()
        total = [torch.zeros_like(tensor) for tensor in inputs]
        for first, last in self._groups(depth, low, high):
            part = _each(Front.select, cut, [torch.arange(first - low, last - low)] * len(cut))
            for sum_, share in zip(total, self._pass(part, depth, first, last, inputs), strict=True):
                sum_ += share
        return total

    def _pass(self, fronts: list[Front], depth: int, low: int, high: int, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        """Read below consecutive nodes until the pass is full, sweep the rest, and differentiate it all."""
        span = range(depth, self._reach(depth, low, high))
        read = _each(lambda policy, front: descend(policy, front, self.levels, span, low, high), self.policies, fronts)
        share = torch.zeros(())
        for level, *logp in zip(span, *(ended for ended, _ in read), strict=False):
            share = share + self.consume(level, low, high, *logp)
            low, high = self.levels[level].inner.before(low), self.levels[level].inner.before(high)
        reached = [front for _, front in read if front is not None]
        below = self._below(reached, span.stop, low, high) if reached else [torch.zeros_like(w) for w in self.weights]
        outputs = [*reached[0].tensors, share] if reached else [share]
        return self._carried(outputs, [*below, torch.ones_like(share)], inputs)

    def _carried(self, outputs: list[Tensor], pulls: list[Tensor], inputs: tuple[Tensor, ...]) -> list[Tensor]:
        """Carry gradients back from outputs to inputs, and add those that reached the weights already.

        Args:
            pulls: gradients in the weights, then in each output.
            inputs: the weights, then any others.
        """
        if not inputs:
            return []
        arrived, pulls = pulls[: len(self.weights)], pulls[len(self.weights) :]
        ends = [(output, pull) for output, pull in zip(outputs, pulls, strict=True) if output.requires_grad]
        made = torch.autograd.grad(
            [output for output, _ in ends], inputs, [pull for _, pull in ends], materialize_grads=True
        )
        return [*(a + b for a, b in zip(arrived, made, strict=False)), *made[len(arrived) :]]

    def _reach(self, depth: int, low: int, high: int) -> int:
        """Return the depth at which a pass below some nodes is cut, at least one level down; the end if it fits.

        It is cut where what hangs from a single node fits a pass of its own, or before it would be too full.
        """
        if self._hanging(depth, low, high)[-1] <= self.budget:
            return len(self.levels)
        read = 0
        for after in range(depth + 1, len(self.levels)):
            low, high = self.levels[after - 1].inner.before(low), self.levels[after - 1].inner.before(high)
            read += high - low
            if read > self.budget and after > depth + 1:
                return after - 1
            if self._hanging(after, low, high).diff().max() <= self.budget:
                return after
        return len(self.levels)

    def _groups(self, depth: int, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Split consecutive nodes so that what hangs from each group fits a pass, or the group is one node."""
        hanging = self._hanging(depth, low, high)
        first = 0
        while first < high - low:
            fitting = int(torch.searchsorted(hanging, hanging[first] + self.budget, right=True)) - 1
            last = max(fitting, first + 1)
            yield low + first, low + last
            first = last

    def _hanging(self, depth: int, low: int, high: int) -> Int[Tensor, " B"]:
        """Return how many inner nodes hang from the first 0, 1, 2, ... of some consecutive nodes."""
        bound = torch.arange(low, high + 1)
        hanging = torch.zeros_like(bound)
        for level in self.levels[depth:-1]:
            bound = level.inner.before(bound)
            hanging += bound - bound[0]
        return hanging


def _each(function: Callable[..., Made], *arguments: Iterable[Any]) -> list[Made]:
    """Apply to what belongs to the trained policy and, without recording, to what belongs to its reference."""
    trained, *others = zip(*arguments, strict=True)
    made = [function(*trained)]
    with torch.no_grad():
        return made + [function(*other) for other in others]
