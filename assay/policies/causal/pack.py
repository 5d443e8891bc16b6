"""Packing: groups of responses laid out in one row, each prompt once, with no padding.

A group takes ``prompt, response 1, response 2, ...``; groups follow one another. The last token of a response is never
read, since nothing is predicted from it. Every token of a response is predicted from one place of the row: its first
token from the end of the prompt, which all responses of the group share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from assay.errors import InputError


@dataclass(frozen=True)
class Group:
    """Where one group stands in a packed row.

    Attributes:
        start: of its prompt.
        prompt: length of the prompt.
        place: where each token of each response stands that is read, ``[G, T]``; anything where there is none.
        read: whether there is one.
    """

    start: int
    prompt: int
    place: Int[Tensor, "G T"]
    read: Bool[Tensor, "G T"]


@dataclass(frozen=True)
class Pack:
    """A packed row.

    Attributes:
        tokens: what is read, ``[S]``.
        positions: of each token in its own prompt and response, from 0.
        groups: where each group stands.
        source: the place that predicts each response token, over all responses in order, ``[M]``.
        target: the response tokens, in the same order.
        lengths: tokens of each response, in order, ``[B]``.
    """

    tokens: Int[Tensor, " S"]
    positions: Int[Tensor, " S"]
    groups: tuple[Group, ...]
    source: Int[Tensor, " M"]
    target: Int[Tensor, " M"]
    lengths: Int[Tensor, " B"]

    def to(self, device: torch.device) -> Pack:
        """Return the same row on another device."""
        groups = tuple(Group(g.start, g.prompt, g.place.to(device), g.read.to(device)) for g in self.groups)
        columns = (self.tokens.to(device), self.positions.to(device))
        return Pack(*columns, groups, self.source.to(device), self.target.to(device), self.lengths.to(device))


def pack(prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[Sequence[int]]]) -> Pack:
    """Lay groups out in one row.

    Args:
        prompts: tokens of each group's prompt.
        responses: tokens of each of its responses; none at all where only the prompt is to be read.

    Raises:
        InputError: a prompt or a response is empty.
    """
    tokens: list[int] = []
    positions: list[int] = []
    source: list[int] = []
    groups = []
    for number, (prompt, members) in enumerate(zip(prompts, responses, strict=True)):
        if not prompt or not all(members):
            raise InputError(f"group {number}: an empty prompt or response has nothing to predict from or to predict")
        start, end = len(tokens), len(tokens) + len(prompt)
        tokens += prompt
        positions += range(len(prompt))
        longest = max((len(member) - 1 for member in members), default=0)
        place = torch.full((len(members), longest), start)
        for row, member in enumerate(members):
            first, read = len(tokens), len(member) - 1
            place[row, :read] = torch.arange(first, first + read)
            source += [end - 1, *range(first, first + read)]
            tokens += member[:-1]
            positions += range(len(prompt), len(prompt) + read)
        lengths = torch.tensor([len(member) - 1 for member in members], dtype=torch.long)
        groups.append(Group(start, len(prompt), place, torch.arange(longest) < lengths[:, None]))
    every = [member for members in responses for member in members]
    return Pack(
        torch.tensor(tokens),
        torch.tensor(positions),
        tuple(groups),
        torch.tensor(source, dtype=torch.long),
        torch.tensor([token for member in every for token in member], dtype=torch.long),
        torch.tensor([len(member) for member in every], dtype=torch.long),
    )
