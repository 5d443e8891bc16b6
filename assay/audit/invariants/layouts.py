"""The ways to lay out the rows of one update: micro-batches, ranks, windows, padding, order, packing, rollouts.

What an update is made from does not depend on any of them, so nothing that is learnt may either.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.streams import Stream, uniforms

Cells = tuple[tuple[tuple[int, ...], ...], ...]
"""The row numbers of each micro-batch of each rank."""
RANKS = (1, 2, 3)


@dataclass(frozen=True)
class Rows:
    """What one update is made from, before it is laid out.

    Attributes:
        logp: of the policy that is trained, ``[N, T]``.
        logp_old: of the policy when the update began.
        adv: advantage of each response, ``[N]``.
        mask: whether the policy chose the token and it is trained on, ``[N, T]``.
        length: tokens of each response, masked ones included, ``[N]``.
        group: which group each row belongs to, ``[N]``.
    """

    logp: Float[Tensor, "N T"]
    logp_old: Float[Tensor, "N T"]
    adv: Float[Tensor, " N"]
    mask: Bool[Tensor, "N T"]
    length: Int[Tensor, " N"]
    group: Int[Tensor, " N"]


@dataclass(frozen=True)
class MicroBatch:
    """Rows that go through the model together.

    Attributes:
        logp: carries the gradient, ``[B, T]``.
        logp_old: as of the rows.
        adv: advantage of each token's response, ``[B, T]``.
        mask: 1.0 where the token is trained on.
        sequence: number of the row that each token belongs to, -1 at padding. It tells packed rows apart.
    """

    logp: Float[Tensor, "B T"]
    logp_old: Float[Tensor, "B T"]
    adv: Float[Tensor, "B T"]
    mask: Float[Tensor, "B T"]
    sequence: Int[Tensor, "B T"]


@dataclass(frozen=True)
class Window:
    """What one optimiser step is made from, with the global facts that a trainer can know.

    Attributes:
        ranks: the micro-batches of each rank, in the order in which they are run.
        rows: all of them before they were laid out.
        planned: micro-batches a rank was configured to accumulate; there are fewer where an epoch ends.
        rollout_tokens: trained tokens of the rollout that the rows come from; it may serve later steps too.
    """

    ranks: tuple[tuple[MicroBatch, ...], ...]
    rows: Rows
    planned: int
    rollout_tokens: int

    @property
    def micro_batches(self) -> tuple[MicroBatch, ...]:
        """Return those of all ranks."""
        return tuple(itertools.chain(*self.ranks))

    @cached_property
    def tokens(self) -> int:
        """Return the trained tokens of the whole window."""
        return int(self.rows.mask.sum())

    @property
    def sequences(self) -> int:
        """Return the responses of the whole window."""
        return len(self.rows.adv)


@dataclass(frozen=True)
class Layout:
    """One way to lay out rows.

    Attributes:
        cells: row numbers of each micro-batch of each rank.
        axis: what is varied, for the remedy.
        width: columns of every micro-batch; None for as many as its longest row has.
        packed: whether the rows of a micro-batch stand one after another in a single row.
        planned: micro-batches configured; None for as many as there are.
        steps: optimiser steps that the rollout serves, each with as many tokens as this one.
    """

    cells: Cells
    axis: str
    width: int | None = None
    packed: bool = False
    planned: int | None = None
    steps: int = 1

    def __str__(self) -> str:
        """Return the layout in words."""
        ranks = [" | ".join(" ".join(map(str, micro)) for micro in rank) for rank in self.cells]
        words = ["; ".join(f"rank {number}: rows {rank}" for number, rank in enumerate(ranks))]
        words += [f"padded to {self.width}"] if self.axis == "padding" else []
        words += ["packed"] if self.packed else []
        words += [f"{self.planned} micro-batches configured"] if self.planned else []
        words += [f"a rollout for {self.steps} steps"] if self.steps > 1 else []
        return ", ".join(words)


def example_rows() -> Rows:
    """Return six responses of unequal lengths in two groups, one of them wholly masked, one with an observation
    inside; advantages of both signs; numbers that no sum cancels."""
    length, width = torch.tensor([1, 4, 2, 3, 2, 4]), 4
    mask = torch.arange(width) < length[:, None]
    mask[3], mask[5, 1] = False, False
    noise = uniforms(2, Stream.DATA, 2 * 6 * width, problem=[0], sample=[0])[0].view(2, 6, width)
    logp = -0.2 - noise[0]
    adv = torch.tensor([1.0, -1.0, 0.5, -0.25, 2.0, -0.75], dtype=logp.dtype)
    return Rows(logp, logp + 0.1 * (noise[1] - 0.5), adv, mask, length, torch.tensor([0, 0, 0, 1, 1, 1]))


def one_batch(rows: Rows) -> Layout:
    """Return the layout that all others are compared with: one rank, one micro-batch."""
    return Layout((((tuple(range(len(rows.adv)))),),), "one batch", width=rows.logp.shape[1])


def layouts(rows: Rows, *, even: bool = False, packed: bool = False) -> list[Layout]:
    """Return the layouts of some rows, fewest micro-batches first.

    Every way to cut the rows into micro-batches on one to three ranks, and one that deals them out; rows in another
    order; more padding; a window that ends early; a rollout that serves two steps.

    Args:
        rows: what is laid out.
        even: only cells of one size, for a trainer that never makes others.
        packed: also rows packed one after another.
    """
    count, width = rows.logp.shape
    cells = [cell for cell in _compositions(count) if not even or len({len(m) for rank in cell for m in rank}) == 1]
    whole, backwards = one_batch(rows).cells, ((tuple(reversed(range(count))),),)
    dealt = (tuple(range(0, count, 2)), tuple(range(1, count, 2)))
    made = [Layout(cell, "ranks" if len(cell) > 1 else "micro-batches", width) for cell in cells if cell != whole]
    made += [Layout((dealt,), "micro-batches", width), Layout(tuple((hand,) for hand in dealt), "ranks", width)]
    made += [Layout(backwards, "order", width), Layout(whole, "padding", width + 2)]
    made += [Layout(whole, "window", width, planned=2), Layout(whole, "rollout", width, steps=2)]
    made += [Layout(whole, "packing", packed=True)] if packed else []
    return made


def lay_out(layout: Layout, rows: Rows, logp: Float[Tensor, "N T"]) -> Window:
    """Return the window of a layout.

    Args:
        layout: how.
        rows: what; its own ``logp`` is replaced by the next one.
        logp: carries the gradient.
    """
    ranks = tuple(tuple(_micro_batch(layout, micro, rows, logp) for micro in rank) for rank in layout.cells)
    planned = layout.planned or max(len(rank) for rank in ranks)
    return Window(ranks, rows, planned, int(rows.mask.sum()) * layout.steps)


def _micro_batch(layout: Layout, numbers: tuple[int, ...], rows: Rows, logp: Float[Tensor, "N T"]) -> MicroBatch:
    places = [[(row, t) for t in range(int(rows.length[row]))] for row in numbers]
    if layout.packed:
        places = [list(itertools.chain(*places))]
    width = layout.width or max(len(line) for line in places)
    place = torch.tensor([line + [(-1, -1)] * (width - len(line)) for line in places])
    adv = rows.adv[:, None].expand_as(rows.logp)
    return MicroBatch(
        logp=_at(place, logp),
        logp_old=_at(place, rows.logp_old),
        adv=_at(place, adv),
        mask=_at(place, rows.mask.to(logp.dtype)),
        sequence=place[..., 0],
    )


def _at(place: Int[Tensor, "B W 2"], values: Float[Tensor, "N T"]) -> Float[Tensor, "B W"]:
    """Return the values of each row and column, 0 at padding."""
    row, column = place.unbind(-1)
    return values[row, column].masked_fill(row < 0, 0.0)


def _compositions(count: int) -> Iterator[Cells]:
    """Yield every way to cut ``count`` rows, in order, into as many micro-batches on each rank."""
    for ranks, each in itertools.product(RANKS, range(1, count + 1)):
        for cuts in itertools.combinations(range(1, count), ranks * each - 1):
            bounds = list(itertools.pairwise((0, *cuts, count)))
            micro = [tuple(range(start, end)) for start, end in bounds]
            yield tuple(tuple(micro[rank * each : (rank + 1) * each]) for rank in range(ranks))
