"""A level of the tree while a policy reads it: the nodes reached so far, and the step from one level to the next."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.errors import InputError
from assay.tree.levels import Level, Levels
from assay.tree.prefix import Grammar, PrefixTree
from assay.types import IncrementalPolicy, Memory

MOST_AXES = 16
"""Node axes after which a front is laid out on one again; tensors have a limited number of them."""


@dataclass(frozen=True)
class Front:
    """Consecutive inner nodes at one depth, on one axis, or one more for each level of equal children.

    Attributes:
        logp: log-probability of reaching each node.
        logits: of the next token.
        memory: what the next token attends to.
    """

    logp: Float[Tensor, "..."]  # noqa: UP037 (a shape, not a quoted type)
    logits: Float[Tensor, "... V"]
    memory: Memory

    @property
    def tensors(self) -> list[Tensor]:
        """Return every tensor in it."""
        return [self.logp, self.logits, *(entry for layer in self.memory for entry in layer)]

    def cut(self) -> Front:
        """Return a copy off the graph whose tensors are leaves of the next one, where gradients are recorded."""
        logp, logits, *entries = [tensor.detach().requires_grad_(torch.is_grad_enabled()) for tensor in self.tensors]
        rest = iter(entries)
        return Front(logp, logits, tuple(tuple(next(rest) for _ in layer) for layer in self.memory))

    def select(self, rows: Int[Tensor, " K"]) -> Front:
        """Return the front of the numbered nodes on a single axis.

        What is the same for all nodes stays single, the rest is gathered; entries of equal extent become one.
        """
        nodes = self.logp.shape
        memory = tuple(_merged([_rows(entry, nodes, rows) for entry in layer]) for layer in self.memory)
        return Front(_rows(self.logp, nodes, rows), _rows(self.logits, nodes, rows), memory)


def opened(policy: IncrementalPolicy, prompt: Int[Tensor, " S"], tree: Grammar | PrefixTree) -> Front:
    """Return the front that holds the empty response alone.

    Raises:
        InputError: the policy answers in another vocabulary than the tree's.
    """
    logits, memory = policy.read(prompt)
    tokens = tree.tokens if isinstance(tree, Grammar) else tree.tokens_in_vocabulary
    if logits.shape[-1] != tokens:
        raise InputError(f"a policy that answers {logits.shape[-1]} tokens on a tree of {tokens}: use one vocabulary")
    return Front(torch.zeros(1, dtype=logits.dtype), logits, memory)


def descend(
    policy: IncrementalPolicy, front: Front, levels: Levels, span: range, low: int, high: int
) -> tuple[list[Tensor], Front | None]:
    """Read the tree below the nodes from ``low`` to ``high``.

    Args:
        front: those nodes.
        span: depths whose edges are followed, from the front's own.

    Returns:
        For each depth the log-probability of the responses that end there, and the front of the inner nodes at the
        depth after ``span``, None where there are none.
    """
    ended = []
    for depth in span:
        level = levels[depth]
        edges = _edge_logp(front, level, low, high)
        ended.append(level.leaves.pick(edges, low, high).flatten())
        bounds = level.inner.before(low), level.inner.before(high)
        if bounds[0] == bounds[1]:
            return ended, None
        front = _advance(policy, front, edges, level, low, high)
        low, high = bounds
    return ended, front


def _edge_logp(front: Front, level: Level, low: int, high: int) -> Float[Tensor, "... V"]:
    """Return the log-probability of each prefix that is one token longer; -inf where it is forbidden."""
    logits = front.logits
    if level.allowed is not None:
        allowed = level.allowed[0] if len(level.allowed) == 1 else level.allowed[low:high].view(logits.shape)
        logits = logits.masked_fill(~allowed, float("-inf"))
    return front.logp.unsqueeze(-1) + logits.log_softmax(-1)


def _advance(
    policy: IncrementalPolicy, front: Front, edges: Float[Tensor, "... V"], level: Level, low: int, high: int
) -> Front:
    """Read the inner children of all nodes."""
    inner = level.inner
    logp = inner.pick(edges, low, high)
    if inner.rows is None:
        tokens = inner.tokens.view([1] * front.logp.ndim + [-1])
    else:
        part = slice(inner.before(low), inner.before(high))
        front = front.select(inner.rows[part] - low)
        tokens, logp = inner.tokens[part, None], logp[:, None]
    logits, memory = policy.extend(front.memory, tokens)
    after = Front(logp, logits.expand(*logp.shape, -1), memory)
    return after if logp.ndim <= MOST_AXES else after.select(torch.arange(logp.numel()))


def _rows(tensor: Tensor, nodes: torch.Size, rows: Int[Tensor, " K"]) -> Tensor:
    """Gather numbered nodes of a tensor whose leading axes are nodes, or are 1; one row if all are."""
    lead = tensor.shape[: len(nodes)]
    flat = tensor.flatten(0, len(nodes) - 1)
    if len(flat) == 1:
        return flat
    if lead == nodes:
        return flat.index_select(0, rows)
    number, stride = torch.zeros_like(rows), 1
    for axis in reversed(range(len(nodes))):
        if lead[axis] > 1:
            number = number + rows % nodes[axis] * stride
            stride *= lead[axis]
        rows = rows // nodes[axis]
    return flat.index_select(0, number)


def _merged(entries: list[Tensor]) -> tuple[Tensor, ...]:
    """Join memory entries of equal extent along their positions."""
    extents = sorted({len(entry) for entry in entries})
    return tuple(torch.cat([entry for entry in entries if len(entry) == extent], dim=1) for extent in extents)
