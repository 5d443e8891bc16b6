"""The shape of a tree, level by level: which edges leave the inner nodes at each depth.

The order is that of :mod:`assay.tree.prefix`: nodes by depth, then by parent, then as the grammar lists the tokens.
What descends from consecutive nodes is then consecutive at every depth. A level where the same tokens follow every
node is held by those tokens alone, so that a grammar without exceptions costs nothing to write down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.tree.prefix import Grammar, PrefixTree, prefix_tree

Row = TypeVar("Row", int, Tensor)


@dataclass(frozen=True)
class Edges:
    """Edges of one kind that leave the inner nodes at one depth.

    Attributes:
        tokens: token of each edge, or those that follow every node alike.
        rows: node that each edge leaves, ascending; None when the tokens follow every node alike.
    """

    tokens: Int[Tensor, " E"]
    rows: Int[Tensor, " E"] | None = None

    def before(self, row: Row) -> Row:
        """Return how many edges leave the nodes before ``row``; one number or a tensor of them."""
        if self.rows is None:
            return row * len(self.tokens)
        if isinstance(row, Tensor):
            return torch.searchsorted(self.rows, row)
        return int(torch.searchsorted(self.rows, row))

    def at(self, number: Int[Tensor, " K"]) -> tuple[Int[Tensor, " K"], Int[Tensor, " K"]]:
        """Return the node that each of the numbered edges leaves, and its token."""
        if self.rows is not None:
            return self.rows[number], self.tokens[number]
        return number // len(self.tokens), self.tokens[number % len(self.tokens)]

    def pick(self, values: Float[Tensor, "*nodes V"], low: int, high: int) -> Float[Tensor, "*edges"]:
        """Return the entries of these edges in a table over the nodes from ``low`` to ``high`` and all tokens.

        Where the same tokens follow every node, the result keeps the node axes and has one more.
        """
        if self.rows is None:
            every = len(self.tokens) == values.shape[-1] and bool((self.tokens.diff() == 1).all())
            return values if every else values.index_select(-1, self.tokens)
        part = slice(self.before(low), self.before(high))
        vocabulary = values.shape[-1]
        flat = values.reshape(-1, vocabulary).flatten()
        return flat.index_select(0, (self.rows[part] - low) * vocabulary + self.tokens[part])


@dataclass(frozen=True)
class Level:
    """The inner nodes at one depth and what leaves them.

    Attributes:
        allowed: tokens that may follow each node, or one row when they are the same for all; None for all tokens.
        inner: edges to the inner nodes at the next depth, in their order.
        leaves: edges that end a response, in the order of the responses.
        first: number of the first response that ends here.
    """

    allowed: Bool[Tensor, "R V"] | None
    inner: Edges
    leaves: Edges
    first: int


Levels = tuple[Level, ...]


def tree_levels(tree: Grammar | PrefixTree) -> Levels:
    """Return the levels of a tree, its root first. A grammar of free tokens is not enumerated.

    Raises:
        InputError: :func:`assay.tree.prefix.prefix_tree` refuses the grammar.
    """
    if isinstance(tree, PrefixTree):
        return _listed_levels(tree)
    free = tree.allowed is None and tree.tokens > 0 and tree.max_length > 0
    return _free_levels(tree) if free else _listed_levels(prefix_tree(tree))


def count(levels: Levels) -> tuple[int, int]:
    """Return how many inner nodes and how many responses there are."""
    nodes, inner = 1, 1
    for level in levels[:-1]:
        nodes = level.inner.before(nodes)
        inner += nodes
    return inner, levels[-1].first + levels[-1].leaves.before(nodes)


def responses_at(levels: Levels, depth: int, low: int, high: int) -> Int[Tensor, "K T"]:
    """Return the tokens of responses that leave the nodes from ``low`` to ``high`` at a depth, all of one length."""
    edges = levels[depth].leaves
    row, token = edges.at(torch.arange(edges.before(low), edges.before(high)))
    columns = [token]
    for level in reversed(levels[:depth]):
        row, token = level.inner.at(row)
        columns.append(token)
    return torch.stack(columns[::-1], dim=1)


def _free_levels(grammar: Grammar) -> Levels:
    """Write down the levels of a grammar in which any token may follow any prefix, the end token apart."""
    every = torch.arange(grammar.tokens)
    ends = every == (-1 if grammar.end is None else grammar.end)
    levels, first, nodes = [], 0, 1
    for depth in range(grammar.max_length):
        last = depth == grammar.max_length - 1 or bool(ends.all())
        leaves = Edges(every if last else every[ends])
        levels.append(Level(None, Edges(every[:0] if last else every[~ends]), leaves, first))
        if last:
            break
        first, nodes = first + leaves.before(nodes), levels[-1].inner.before(nodes)
    return tuple(levels)


def _listed_levels(tree: PrefixTree) -> Levels:
    """Sort the edges of an enumerated tree by depth and by what they lead to."""
    inner = torch.zeros(len(tree.parent), dtype=torch.bool)
    inner[tree.inner] = True
    row = inner.long().cumsum(0) - 1
    levels, first, start, stop = [], 0, 0, 1
    while inner[start:stop].any():
        end = int(torch.searchsorted(tree.parent, stop))
        low, high = int(row[start - 1]) + 1 if start else 0, int(row[stop - 1]) + 1
        parent, token, grows = row[tree.parent[stop:end]] - low, tree.token[stop:end], inner[stop:end]
        leaves = _edges(parent[~grows], token[~grows], high - low)
        levels.append(
            Level(_same(tree.allowed[low:high]), _edges(parent[grows], token[grows], high - low), leaves, first)
        )
        first += int((~grows).sum())
        start, stop = stop, end
    return tuple(levels)


def _edges(rows: Int[Tensor, " E"], tokens: Int[Tensor, " E"], nodes: int) -> Edges:
    """Hold edges by one node's tokens where all nodes have the same."""
    each = len(tokens) // nodes
    table = tokens[: nodes * each].view(nodes, each)
    alike = torch.equal(rows, torch.arange(nodes).repeat_interleave(each)) and bool((table == table[:1]).all())
    return Edges(table[0]) if alike else Edges(tokens, rows)


def _same(allowed: Bool[Tensor, "I V"]) -> Bool[Tensor, "R V"] | None:
    """Return one row where all are the same, and nothing where all tokens are allowed."""
    if bool(allowed.all()):
        return None
    return allowed[:1] if bool((allowed == allowed[:1]).all()) else allowed
