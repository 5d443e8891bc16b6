"""The prefix tree of a grammar: every response of several lengths, with shared prefixes held once.

A node is a prefix, an edge the token that extends it. A response ends with the end token or, truncated, at the
longest length. Everything exact is a sum over the leaves; every log-probability is a gather over the edges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.errors import InputError

NODE_BUDGET = 2_000_000
"""Most nodes a tree may have; beyond it, enumeration is refused rather than started."""


@dataclass(frozen=True)
class Grammar:
    """Which responses there are.

    Attributes:
        tokens: size of the response vocabulary, at least 1.
        max_length: longest response in tokens, at least 1; one that gets there without the end token is truncated.
        end: the end-of-sequence token, or None when every response has full length.
        allowed: the tokens that may follow a prefix, or None for all of them. One token is a forced one.
    """

    tokens: int
    max_length: int
    end: int | None = None
    allowed: Callable[[tuple[int, ...]], tuple[int, ...]] | None = None


@dataclass(frozen=True)
class PrefixTree:
    """All responses of a grammar.

    Nodes are numbered level by level, the empty prefix first; an edge has the number of the node it leads to. Inner
    nodes are those with children, leaves are the M responses; both keep the order of their nodes.

    Attributes:
        tokens_in_vocabulary: V.
        parent: node before each node, ``[N]``; -1 for the empty prefix.
        token: token of the edge into each node, ``[N]``; -1 for the empty prefix.
        inner: node numbers with children, ``[I]``.
        allowed: tokens that may follow each inner node, ``[I, V]``.
        path: edges of each response in order, ``[M, T]``; 0 where the response is over.
        mask: whether a position belongs to the response, ``[M, T]``.
        truncated: whether a response stopped at the longest length without the end token, ``[M]``.
        end: the end token, if there is one.
    """

    tokens_in_vocabulary: int
    parent: Int[Tensor, " N"]
    token: Int[Tensor, " N"]
    inner: Int[Tensor, " I"]
    allowed: Bool[Tensor, "I V"]
    path: Int[Tensor, "M T"]
    mask: Bool[Tensor, "M T"]
    truncated: Bool[Tensor, " M"]
    end: int | None = None

    @property
    def responses(self) -> Int[Tensor, "M T"]:
        """Return the tokens of each response; 0 where it is over."""
        return self.token[self.path] * self.mask

    @property
    def prefixes(self) -> list[list[int]]:
        """Return the tokens of every node's prefix, in the order of the nodes."""
        made: list[list[int]] = [[]]
        for parent, token in zip(self.parent.tolist()[1:], self.token.tolist()[1:], strict=True):
            made.append([*made[parent], token])
        return made

    @property
    def lengths(self) -> Int[Tensor, " M"]:
        """Return the number of tokens in each response, its end token included."""
        return self.mask.sum(1)

    @property
    def states(self) -> Int[Tensor, "M T"]:
        """Return the row, among the inner nodes, of the prefix that each token of each response follows."""
        return self._row[self.path]

    @cached_property
    def _row(self) -> Int[Tensor, " N"]:
        """Row of each node's parent among the inner nodes; 0 for the empty prefix, which has none."""
        rows = torch.zeros(len(self.parent), dtype=torch.long)
        rows[self.inner] = torch.arange(len(self.inner))
        return rows[self.parent.clamp(min=0)]

    def next_logp(self, logits: Float[Tensor, "*batch I V"]) -> Float[Tensor, "*batch I V"]:
        """Return the log-probability of each next token, normalised over what the grammar allows; -inf elsewhere."""
        return logits.masked_fill(~self.allowed, float("-inf")).log_softmax(-1)

    def token_logp(self, logits: Float[Tensor, "*batch I V"]) -> Float[Tensor, "*batch M T"]:
        """Return the log-probability of each token of each response, with gradient; 0 where the response is over."""
        table = self.next_logp(logits).flatten(-2)
        edges = table[..., self._row * self.tokens_in_vocabulary + self.token.clamp(min=0)]
        return edges[..., self.path].masked_fill(~self.mask, 0.0)


def prefix_tree(grammar: Grammar, *, budget: int = NODE_BUDGET) -> PrefixTree:
    """Enumerate all responses of a grammar.

    Raises:
        InputError: the grammar allows no or an unknown token somewhere, or has more nodes than ``budget``.
    """
    if grammar.tokens < 1 or grammar.max_length < 1:
        raise InputError(
            f"a grammar of {grammar.tokens} tokens and length {grammar.max_length}: both must be at least 1"
        )
    every = tuple(range(grammar.tokens))
    prefixes: list[tuple[int, ...]] = [()]
    parent, inner, allowed, leaves = [-1], [], [], []
    for node, prefix in enumerate(prefixes):  # the list grows while it is read, level by level
        if len(prefix) == grammar.max_length or (prefix and prefix[-1] == grammar.end):
            leaves.append(node)
            continue
        following = every if grammar.allowed is None else tuple(grammar.allowed(prefix))
        if not following or not set(following) <= set(every) or len(set(following)) < len(following):
            raise InputError(f"after prefix {prefix} the grammar allows {following}: need distinct tokens of {every}")
        inner.append(node)
        allowed.append([token in following for token in every])
        prefixes += [(*prefix, token) for token in following]
        parent += [node] * len(following)
        if len(prefixes) > budget:
            raise InputError(f"the tree has more than {budget} nodes; use a shorter response or fewer tokens")
    depth = max(len(prefixes[leaf]) for leaf in leaves)
    paths = [_path(parent, leaf) for leaf in leaves]
    return PrefixTree(
        tokens_in_vocabulary=grammar.tokens,
        parent=torch.tensor(parent),
        token=torch.tensor([-1, *(prefix[-1] for prefix in prefixes[1:])]),
        inner=torch.tensor(inner),
        allowed=torch.tensor(allowed),
        path=torch.tensor([path + [0] * (depth - len(path)) for path in paths]),
        mask=torch.tensor([[True] * len(path) + [False] * (depth - len(path)) for path in paths]),
        truncated=torch.tensor([grammar.end is not None and prefixes[leaf][-1] != grammar.end for leaf in leaves]),
        end=grammar.end,
    )


def _path(parent: list[int], node: int) -> list[int]:
    """Return the edges from the empty prefix to a node."""
    edges = []
    while node:
        edges.append(node)
        node = parent[node]
    return edges[::-1]
