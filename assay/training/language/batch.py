"""A batch of responses, and how it is cut into parts that fit a budget of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.policies.causal.pack import Pack, pack


@dataclass(frozen=True)
class Batch:
    """Responses to some prompts, the rows of one group standing together.

    Attributes:
        prompts: tokens of each group's prompt.
        responses: tokens of each response.
        group: the group that each response belongs to, ascending.
    """

    prompts: tuple[tuple[int, ...], ...]
    responses: tuple[tuple[int, ...], ...]
    group: tuple[int, ...]

    @property
    def mask(self) -> Bool[Tensor, "B T"]:
        """Return which places of a padded table hold a token."""
        lengths = torch.tensor([len(response) for response in self.responses])
        return torch.arange(int(lengths.max())) < lengths[:, None]

    def padded(self, values: Sequence[Sequence[float]] | Sequence[Sequence[int]], dtype: torch.dtype) -> Tensor:
        """Return one row of values a response as a table, ``[B, T]``, zero where there is no token."""
        flat = torch.tensor([value for row in values for value in row], dtype=dtype)
        return spread(flat, self.mask)

    def part(self, rows: Sequence[int]) -> Pack:
        """Return some rows, in ascending order, as one packed row."""
        groups = sorted({self.group[row] for row in rows})
        members = [[self.responses[row] for row in rows if self.group[row] == group] for group in groups]
        return pack([self.prompts[group] for group in groups], members)

    def parts(self, rows: Sequence[int], budget: int) -> list[list[int]]:
        """Cut rows into parts of at most so many tokens, a prompt counted once in each part that reads it.

        A single response that is longer than the budget is a part of its own.
        """
        made: list[list[int]] = []
        room, last = 0, -1
        for row in rows:
            group, read = self.group[row], len(self.responses[row]) - 1
            needed = read + (len(self.prompts[group]) if group != last else 0)
            if not made or needed > room:
                made.append([])
                room, needed = budget, read + len(self.prompts[group])
            made[-1].append(row)
            room -= needed
            last = group
        return made


def spread(flat: Float[Tensor, " M"] | Int[Tensor, " M"], mask: Bool[Tensor, "B T"]) -> Tensor:
    """Lay values of tokens, one response after another, into a table; zero elsewhere. Gradient flows through."""
    return torch.zeros(mask.shape, dtype=flat.dtype, device=flat.device).masked_scatter(mask.to(flat.device), flat)
