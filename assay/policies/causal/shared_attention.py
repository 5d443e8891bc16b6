"""Attention over a packed row: prompts attend to themselves, responses to their prompt and to themselves.

The keys and values of a prompt are read by all responses of its group and copied for none. Scores are made for a block
of queries at a time, in the forward and again in the backward, so that none outlives its block (Dao et al.,
"FlashAttention", 2022, written as matrix products).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.policies.causal.pack import Group, Pack

BLOCK = 2**20
"""Scores that are made at once: few enough to stay in a core's cache."""


def shared_attention(
    query: Float[Tensor, "H S D"], key: Float[Tensor, "K S D"], value: Float[Tensor, "K S D"], pack: Pack, scale: float
) -> Float[Tensor, "S H D"]:
    """Return what each token of a packed row attends to.

    Args:
        query: H heads, a multiple of K; the i-th K-th of them reads key head i.
        key: with positions encoded.
        value: as many heads.
        pack: where groups stand.
        scale: of the scores.
    """
    made: Tensor = _Attention.apply(query, key, value, pack, scale)  # type: ignore[no-untyped-call]
    return made


@dataclass(frozen=True)
class _Keys:
    """Keys that a block of queries reads: the same for all its rows, or each row's own.

    Attributes:
        place: ``[R, P]``, R the rows, or 1 where they share. A slice of places where they stand together.
        hidden: which of them a query does not read, ``[T, P]``; None where it reads all.
        held: which of them are places at all; None for all.
    """

    place: slice | Int[Tensor, "R P"]
    hidden: Bool[Tensor, "T P"] | None
    held: Bool[Tensor, "R P"] | None = None

    def of(self, values: Float[Tensor, "K S D"]) -> Float[Tensor, "K R P D"]:
        return values[:, None, self.place] if isinstance(self.place, slice) else values[:, self.place]

    def add(self, total: Float[Tensor, "K S D"], part: Float[Tensor, "K R P D"]) -> None:
        if isinstance(self.place, slice):
            total[:, self.place] += part[:, 0]
        else:
            total.index_add_(1, self.place[self.held], part[:, self.held])


@dataclass(frozen=True)
class _Block:
    """Queries that are worked on at once, ``[G, T]``, and the keys that they read."""

    place: Int[Tensor, "G T"]
    held: Bool[Tensor, "G T"] | None
    keys: tuple[_Keys, ...]

    def of(self, values: Float[Tensor, "K N S *D"]) -> Float[Tensor, "K G N T *D"]:
        return values[:, :, self.place].transpose(1, 2)

    def put(self, into: Float[Tensor, "K N S *D"], values: Float[Tensor, "K G N T *D"]) -> None:
        back = values.transpose(1, 2)
        if self.held is None:
            into[:, :, self.place] = back
        else:
            into[:, :, self.place[self.held]] = back[:, :, self.held]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, pack: Pack, scale: float) -> Tensor:
        heads, length, size = query.shape
        split = (len(key), heads // len(key))
        out = query.new_empty(length, heads, size)
        lse = query.new_empty(heads, length, dtype=accumulator(query.dtype))
        for block in _blocks(pack, heads):
            scores = _scores(block, query.unflatten(0, split), key, scale)
            top = torch.stack([part.amax(-1) for part in scores]).amax(0)
            weights = [part.sub_(top[..., None]).exp_() for part in scores]
            total = torch.stack([part.sum(-1) for part in weights]).sum(0)
            made = _mixed(block, weights, value).div_(total[..., None])
            block.put(out.permute(1, 0, 2).unflatten(0, split), made.to(out.dtype))
            block.put(lse.unflatten(0, split), top.add_(total.log_()))
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.pack, ctx.scale = pack, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        split = (len(key), len(query) // len(key))
        queries, grad_out = query.unflatten(0, split), grads[0].permute(1, 0, 2).unflatten(0, split)
        inner = (grads[0] * out).sum(-1, dtype=lse.dtype).T.unflatten(0, split)
        grad_query, grad_key, grad_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for block in _blocks(ctx.pack, len(query)):
            asked, rows, dot = block.of(queries), block.of(grad_out), block.of(inner)
            normaliser = block.of(lse.unflatten(0, split))
            if block.held is not None:  # weights of queries that are none come out as zero
                normaliser = normaliser.masked_fill(~block.held[:, None], float("inf"))
            made = torch.zeros_like(asked)
            for keys, score in zip(block.keys, _scores(block, queries, key, ctx.scale), strict=True):
                weights = score.sub_(normaliser[..., None]).exp_()
                read = keys.of(key)
                rows_read = len(read[0])
                pulled = _rows(rows, rows_read)
                keys.add(grad_value, _rows(weights, rows_read).to(pulled.dtype).mT @ pulled)
                slope = (pulled @ keys.of(value).mT).view_as(weights).to(weights.dtype)
                slope = slope.sub_(dot[..., None]).mul_(weights).mul_(ctx.scale).to(read.dtype)
                keys.add(grad_key, _rows(slope, rows_read).mT @ _rows(asked, rows_read))
                made += (_rows(slope, rows_read) @ read).view_as(made)
            block.put(grad_query.unflatten(0, split), made)
        return grad_query, grad_key, grad_value, None, None


def _blocks(pack: Pack, heads: int) -> Iterator[_Block]:
    for group in pack.groups:
        yield from _prompt_blocks(group, heads)
        if group.place.numel():
            yield from _response_blocks(group, heads)


def _prompt_blocks(group: Group, heads: int) -> Iterator[_Block]:
    """Cut a prompt into runs of queries, each of which reads all keys up to its own end."""
    device, end = group.place.device, group.start + group.prompt
    step = max(1, BLOCK // (heads * group.prompt))
    for first in range(group.start, end, step):
        last = min(first + step, end)
        query, read = torch.arange(first, last, device=device), torch.arange(group.start, last, device=device)
        yield _Block(query[None], None, (_Keys(slice(group.start, last), read > query[:, None]),))


def _response_blocks(group: Group, heads: int) -> Iterator[_Block]:
    """Cut a group into runs of responses, each of which reads the prompt and itself."""
    prompt = _Keys(slice(group.start, group.start + group.prompt), None)
    length = group.place.shape[1]
    later = torch.ones(length, length, dtype=torch.bool, device=group.place.device).triu(1)
    step = max(1, BLOCK // (heads * length * (group.prompt + length)))
    for place, held in zip(group.place.split(step), group.read.split(step), strict=True):
        yield _Block(place, held, (prompt, _Keys(place, later, held)))


def _scores(block: _Block, queries: Tensor, key: Tensor, scale: float) -> list[Tensor]:
    """Return the scores of a block against each of its sets of keys, ``[K, G, N, T, P]``, -inf where hidden."""
    asked = block.of(queries)
    made = []
    for keys in block.keys:
        read = keys.of(key)
        score = (_rows(asked, len(read[0])) @ read.mT).view(*asked.shape[:-1], -1)
        score = score.to(accumulator(score.dtype)).mul_(scale)
        made.append(score if keys.hidden is None else score.masked_fill_(keys.hidden, float("-inf")))
    return made


def _mixed(block: _Block, weights: list[Tensor], value: Tensor) -> Tensor:
    """Return the values of a block's keys, summed by weight, ``[K, G, N, T, D]``."""
    parts = []
    for keys, weight in zip(block.keys, weights, strict=True):
        read = keys.of(value)
        parts.append((_rows(weight, len(read[0])).to(read.dtype) @ read).view(*weight.shape[:-1], -1))
    return parts[0] if len(parts) == 1 else parts[0].add_(parts[1])


def _rows(values: Float[Tensor, "K G N T D"], rows: int) -> Float[Tensor, "K R _ D"]:
    """Lay out values so that those which read the same keys stand together."""
    return values.reshape(len(values), rows, -1, values.shape[-1])


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return the type that scores and their sums are kept in."""
    return torch.promote_types(dtype, torch.float32)
