"""The three layouts that a forward works in: a packed row, prompts that are kept, and one more token a response."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.policies.causal.pack import Pack
from assay.policies.causal.shared_attention import accumulator, shared_attention

KeyValue = tuple[Tensor, Tensor]
"""Keys and values of one layer, each ``[K, S, D]``."""


class Packed:
    """A packed row."""

    def __init__(self, pack: Pack) -> None:
        self.pack = pack
        self.longest = int(pack.positions.max()) + 1

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attend as :func:`assay.policies.causal.shared_attention.shared_attention` does."""
        return shared_attention(query, key, value, self.pack, scale)


class Prefill(Packed):
    """A packed row of prompts alone, whose keys and values are kept."""

    def __init__(self, pack: Pack) -> None:
        super().__init__(pack)
        self._kept: dict[int, KeyValue] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Keep keys and values, then attend."""
        self._kept[layer] = (key, value)
        return super().attend(layer, query, key, value, scale)

    def prompts(self) -> list[dict[int, KeyValue]]:
        """Return the keys and values of each prompt by layer."""
        spans = [slice(group.start, group.start + group.prompt) for group in self.pack.groups]
        return [{layer: (k[:, span], v[:, span]) for layer, (k, v) in self._kept.items()} for span in spans]


class Decode:
    """One more token of each of N responses, which read their prompt and what they have said.

    The responses to one prompt stand together, and its keys and values are held once for all of them. What a response
    has said is held in rooms that grow as it does.

    Args:
        prompts: keys and values of each distinct prompt, by layer.
        counts: responses to each, at least 1.
    """

    def __init__(self, prompts: Sequence[dict[int, KeyValue]], counts: Sequence[int]) -> None:
        self._prompts, self._counts = list(prompts), list(counts)
        keys = {layer: key for layer, (key, _) in self._prompts[0].items()}
        self._own = {
            layer: [k.new_empty(sum(counts), len(k), 0, k.shape[-1]) for _ in range(2)] for layer, k in keys.items()
        }
        self.said = torch.zeros(sum(counts), dtype=torch.long, device=next(iter(keys.values())).device)
        self._arrange()

    @property
    def longest(self) -> int:
        """Return the most tokens that a response reads."""
        return max(self._lengths) + self._room_used

    @property
    def positions(self) -> Int[Tensor, " N"]:
        """Return the position of each response's next token."""
        return self._length_of + self.said

    def advance(self) -> None:
        """Count the tokens that were just read."""
        self.said += 1
        self._room_used = int(self.said.max()) + 1

    def keep(self, rows: Int[Tensor, " M"]) -> None:
        """Drop all responses but some, given in order; a prompt without responses goes too."""
        which = self._group_of[rows]
        counts = torch.bincount(which, minlength=len(self._counts)).tolist()
        self._prompts = [prompt for prompt, count in zip(self._prompts, counts, strict=True) if count]
        self._counts = [count for count in counts if count]
        self._own = {layer: [cache[rows] for cache in caches] for layer, caches in self._own.items()}
        self.said = self.said[rows]
        if self._counts:
            self._arrange()

    def join(self, other: Decode) -> None:
        """Take in the responses of another layout, after those here."""
        self._prompts, self._counts = self._prompts + other._prompts, self._counts + other._counts
        room = max(self._room, other._room)
        self._grow(room)
        other._grow(room)
        self._own = {
            layer: [torch.cat(pair) for pair in zip(caches, other._own[layer], strict=True)]
            for layer, caches in self._own.items()
        }
        self.said = torch.cat([self.said, other.said])
        self._arrange()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Add each response's new key and value to what it holds, and attend to its prompt and to that."""
        if self._room < self._room_used:
            self._grow(max(32, 2 * self._room, self._room_used))
        heads, rows, size = query.shape
        own_key, own_value = self._own[layer]
        own_key[self._rows, :, self.said] = key.transpose(0, 1)
        own_value[self._rows, :, self.said] = value.transpose(0, 1)
        asked = query.view(len(key), -1, rows, size).permute(2, 0, 1, 3)
        used = slice(0, self._room_used)
        own, own_lse = _attended(asked, own_key[:, :, used], own_value[:, :, used], self._unsaid, scale)
        shared_key, shared_value = self._shared[layer]
        together = asked[self._slot].transpose(1, 2).flatten(2, 3)
        shared, shared_lse = _attended(together, shared_key, shared_value, self._unprompted, scale)
        shared, shared_lse = self._by_row(shared, asked), self._by_row(shared_lse[..., None], asked)
        weight = torch.sigmoid(shared_lse - own_lse[..., None]).to(own.dtype)
        return torch.lerp(own, shared, weight.expand_as(own)).flatten(1, 2)

    def _by_row(self, values: Float[Tensor, "n K Q D"], asked: Tensor) -> Float[Tensor, "N K R D"]:
        """Bring what was computed for each prompt's responses together back into one row a response."""
        parts: Tensor = values.unflatten(2, (self._slot.shape[1], asked.shape[2])).transpose(1, 2)
        return parts[self._taken]

    def _arrange(self) -> None:
        """Work out what follows from prompts, counts and rows."""
        device, counts = self.said.device, torch.tensor(self._counts)
        self._lengths = [next(iter(prompt.values()))[0].shape[1] for prompt in self._prompts]
        self._shared = {
            layer: tuple(_padded([prompt[layer][side] for prompt in self._prompts]) for side in range(2))
            for layer in self._prompts[0]
        }
        lengths = torch.tensor(self._lengths)
        self._unprompted = _beyond(lengths.to(device), max(self._lengths))
        self._group_of = torch.arange(len(counts)).repeat_interleave(counts).to(device)
        self._length_of = lengths.to(device)[self._group_of]
        first = counts.cumsum(0) - counts
        within = torch.arange(int(counts.max()))
        self._taken = (within < counts[:, None]).to(device)
        self._slot = (first[:, None] + within.clamp(max=counts[:, None] - 1)).to(device)
        self._rows = torch.arange(len(self.said), device=device)
        self._room_used = int(self.said.max()) + 1

    @property
    def _unsaid(self) -> Tensor | None:
        return _beyond(self.said + 1, self._room_used)

    @property
    def _room(self) -> int:
        return next(iter(self._own.values()))[0].shape[2]

    def _grow(self, room: int) -> None:
        """Give every response room for so many tokens."""
        more = room - self._room
        if more > 0:
            self._own = {
                layer: [torch.nn.functional.pad(cache, (0, 0, 0, more)) for cache in caches]
                for layer, caches in self._own.items()
            }


def _attended(
    query: Float[Tensor, "n K Q D"],
    key: Float[Tensor, "n K P D"],
    value: Float[Tensor, "n K P D"],
    hidden: Tensor | None,
    scale: float,
) -> tuple[Float[Tensor, "n K Q D"], Float[Tensor, "n K Q"]]:
    """Attend to some of the keys, and return the log of the normaliser too."""
    score = query @ key.mT
    score = score.to(accumulator(score.dtype)).mul_(scale)
    if hidden is not None:
        score.masked_fill_(hidden[:, None, None], float("-inf"))
    top = score.amax(-1, keepdim=True)
    weight = score.sub_(top).exp_()
    total = weight.sum(-1, keepdim=True)
    return (weight.to(value.dtype) @ value) / total.to(value.dtype), (top + total.log())[..., 0]


def _padded(rows: list[Float[Tensor, "K _ D"]]) -> Float[Tensor, "n K P D"]:
    """Stack tensors of different lengths, with zeros after the shorter ones."""
    return (
        torch.nn.utils.rnn.pad_sequence([row.transpose(0, 1) for row in rows], batch_first=True)
        .transpose(1, 2)
        .contiguous()
    )


def _beyond(lengths: Int[Tensor, " n"], longest: int) -> Tensor | None:
    """Return what is beyond each length, ``[n, longest]``, or None where nothing is."""
    beyond = torch.arange(longest, device=lengths.device) >= lengths[:, None]
    return beyond if bool(beyond.any()) else None
