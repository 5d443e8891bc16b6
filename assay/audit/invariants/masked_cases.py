"""A batch whose masked positions are filled with other values, moved, multiplied or taken out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from assay.core.advantages import leave_one_out
from assay.core.streams import Stream, uniforms

VALUES = (7.0, 1e3, math.inf, math.nan)
"""What is put under the mask; ``exp(1e3)`` overflows, as a log-ratio of padding can."""

SELECT = (
    "select with the mask before anything is computed, as in where(mask, logp, 0): a product with the mask keeps NaN"
)
ONE_MASK = "sum and count under one mask, the final one, in numerator and denominator"
BY_MASK = "find positions by the mask, not by counting them from an edge of the batch"
ABSENT = "leave wholly masked rows out of every sum, mean, standard deviation and count"


@dataclass(frozen=True)
class Variant:
    """A batch that differs from another at masked positions only.

    Attributes:
        name: what was done to it.
        case: its arguments.
        mask: the positions that count; there are as many as before, in the same order.
        remedy: what to do where it shows.
    """

    name: str
    case: dict[str, Tensor]
    mask: Bool[Tensor, "R W"]
    remedy: str


def example_case() -> dict[str, Tensor]:
    """Return arguments for a loss, by the names of :data:`assay.audit.call.NAMES` up to ``tokens``: four responses in
    two groups, of one to five tokens, one with an observation inside."""
    width, group = 5, torch.tensor([0, 0, 1, 1])
    mask = torch.arange(width) < torch.tensor([3, 5, 1, 4])[:, None]
    mask[1, 2] = False
    names = ("logp", "logp_old", "logp_ref", "logp_sampler", "value")
    noise = uniforms(3, Stream.DATA, len(names) * mask.numel(), problem=[0], sample=[0]).view(-1, *mask.shape)
    logp = -0.2 - noise[0]
    made = {name: logp + 0.1 * (near - 0.5) for name, near in zip(names, noise, strict=True)}
    reward = torch.tensor([1.0, 0.0, 0.25, 0.75], dtype=logp.dtype)
    made |= {"logp": logp, "value": noise[-1], "reward": reward, "adv": leave_one_out(reward, group)}
    tokens, truncated = (10 * noise[0]).long() * mask, torch.tensor([False, True, False, False])
    return made | {"mask": mask.to(logp.dtype), "group": group, "truncated": truncated, "tokens": tokens}


def variants(
    case: dict[str, Tensor], mask: Bool[Tensor, "B T"], *, fill: Mapping[str, int | float], left: bool, close_up: bool
) -> Iterator[Variant]:
    """Yield a batch with other values at masked positions, then with more of these or without them.

    Args:
        case: arguments; see :func:`assay.audit.invariants.masking.masked_inert`.
        mask: the positions that count.
        fill: what padding holds, by argument, where it is not zero.
        left: also with padding on the left.
        close_up: also without masked positions inside rows.
    """
    for name, changed, remedy in _revalued(case, mask):
        yield Variant(name, changed, mask, remedy)
    line, more = torch.arange(mask.shape[1]).expand_as(mask), torch.full((len(mask), 2), -1)
    every, kept = torch.arange(len(mask)), mask.any(1).nonzero()[:, 0]
    layouts = [("two more padded positions on the right", every, torch.cat([line, more], 1), ONE_MASK)]
    if left:
        layouts.append(("two more padded positions on the left", every, torch.cat([more, line], 1), BY_MASK))
    if len(kept) < len(mask):
        layouts.append(("the wholly masked rows taken out", kept, line[kept], ABSENT))
    if close_up:
        columns = _closed_up(mask[kept])
        layouts.append(("every masked position taken out", kept, columns, ONE_MASK))
        if left:
            layouts.append(("every masked position taken out, padding on the left", kept, _shoved(columns), ONE_MASK))
    for name, rows, columns, remedy in layouts:
        moved = {key: _moved(value, mask, rows, columns, fill.get(key, 0.0)) for key, value in case.items()}
        yield Variant(name, moved, mask[rows[:, None], columns] & (columns >= 0), remedy)


def _revalued(case: dict[str, Tensor], mask: Bool[Tensor, "B T"]) -> Iterator[tuple[str, dict[str, Tensor], str]]:
    """Yield the case with other values under the mask, in one argument at a time, and the remedy."""
    empty = ~mask.any(1)
    for name, given in case.items():
        if name == "mask" or not given.is_floating_point():
            continue
        if given.shape[:2] == mask.shape:
            over = (~mask).view(*mask.shape, *[1] * (given.ndim - 2))
            for value in VALUES:
                yield f"{value:g} under the mask of {name}", case | {name: given.masked_fill(over, value)}, SELECT
        elif given.shape == mask.shape[:1] and bool(empty.any()):
            row = int(empty.nonzero()[0])
            yield f"{name} of row {row}, wholly masked, 7 larger", case | {name: given + 7.0 * empty}, ABSENT


def _moved(
    value: Tensor, mask: Bool[Tensor, "B T"], rows: Int[Tensor, " R"], columns: Int[Tensor, "R W"], fill: int | float
) -> Tensor:
    """Return an argument with its rows and columns taken from where they are said to stand; -1 is padding."""
    if value.shape[:2] == mask.shape:
        over = (columns < 0).view(*columns.shape, *[1] * (value.ndim - 2))
        return value[rows[:, None], columns].masked_fill(over, fill)
    return value[rows] if value.shape[:1] == mask.shape[:1] else value


def _closed_up(mask: Bool[Tensor, "R T"]) -> Int[Tensor, "R W"]:
    """Return the columns that count, one after another; -1 where a row has no more."""
    rows = [row.nonzero()[:, 0] for row in mask]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)


def _shoved(columns: Int[Tensor, "R W"]) -> Int[Tensor, "R W"]:
    """Return the columns with their padding on the left."""
    return torch.stack([torch.cat([row[row < 0], row[row >= 0]]) for row in columns])
