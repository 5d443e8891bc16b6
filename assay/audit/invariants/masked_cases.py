"""A batch whose masked positions are filled with other values, moved, multiplied or taken out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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
OWN_MASK = "take the mask that is given, not one made from the numbers under it"
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
    case: dict[str, Any]
    mask: Bool[Tensor, "R W"]
    remedy: str


def example_case() -> dict[str, Tensor]:
    """Return arguments for a loss, by the names of :data:`assay.audit.call.NAMES` up to ``tokens``: five responses in
    two groups, of no to five tokens, one with an observation inside, whose token is one like others."""
    width, group = 5, torch.tensor([0, 0, 1, 1, 1])
    present = torch.arange(width) < torch.tensor([3, 5, 1, 4, 0])[:, None]
    mask = present.clone()
    mask[1, 2] = False
    names = ("logp", "logp_old", "logp_ref", "logp_sampler", "value")
    noise = uniforms(3, Stream.DATA, len(names) * mask.numel(), problem=[0], sample=[0]).view(-1, *mask.shape)
    logp = -0.2 - noise[0]
    made = {name: logp + 0.1 * (near - 0.5) for name, near in zip(names, noise, strict=True)}
    reward = torch.tensor([1.0, 0.0, 0.25, 0.75, 0.5], dtype=logp.dtype)
    made |= {"logp": logp, "value": noise[-1], "reward": reward, "adv": leave_one_out(reward, group)}
    tokens, truncated = (1 + 9 * noise[0]).long() * present, torch.tensor([False, True, False, False, False])
    return made | {"mask": mask.to(logp.dtype), "group": group, "truncated": truncated, "tokens": tokens}


def variants(
    case: dict[str, Any],
    mask: Bool[Tensor, "B T"],
    *,
    fill: Mapping[str, int | float],
    left: bool,
    close_up: bool,
    absent: bool,
) -> Iterator[Variant]:
    """Yield a batch with other values at masked positions, then with more of these or without them.

    Args:
        case: arguments; see :func:`assay.audit.invariants.masking.masked_inert`.
        mask: the positions that count.
        fill: what padding holds, by argument, where it is not zero.
        left: also with padding on the left.
        close_up: also without masked positions inside rows.
        absent: also without the wholly masked rows.
    """
    for name, changed, remedy in _revalued(case, mask):
        yield Variant(name, changed, mask, remedy)
    line, more = torch.arange(mask.shape[1]).expand_as(mask), torch.full((len(mask), 2), -1)
    layouts = [("two more padded positions on the right", torch.cat([line, more], 1), ONE_MASK)]
    if left:
        layouts.append(("two more padded positions on the left", torch.cat([more, line], 1), BY_MASK))
    if close_up:
        columns = _closed_up(mask)
        layouts.append(("every masked position taken out", columns, ONE_MASK))
        if left:
            layouts.append(("every masked position taken out, padding on the left", _shoved(columns), ONE_MASK))
    for name, columns, remedy in layouts:
        changed = {key: _laid_out(value, mask, columns, fill.get(key, 0.0)) for key, value in case.items()}
        yield Variant(name, changed, mask.gather(1, columns.clamp(min=0)) & (columns >= 0), remedy)
    if absent and not bool(mask.any(1).all()):
        yield taken_out(case, mask)


def taken_out(case: dict[str, Any], mask: Bool[Tensor, "B T"]) -> Variant:
    """Return a batch without its wholly masked rows."""
    kept = mask.any(1)
    rest = {name: value[kept] if _of_rows(value, mask) else value for name, value in case.items()}
    return Variant("the wholly masked rows taken out", rest, mask[kept], ABSENT)


def moved(case: dict[str, Any], mask: Bool[Tensor, "B T"], fill: Mapping[str, int | float]) -> Iterator[Variant]:
    """Yield batches that differ where the mask is set: in every number, then in that a row has one position less."""
    floats = {
        name: value + 0.1 * value.sin().abs() + 0.1
        for name, value in case.items()
        if name != "mask" and _of_rows(value, mask) and value.is_floating_point()
    }
    yield Variant("other numbers", {**case, **floats}, mask, "")
    for row in mask.any(1).nonzero()[:, 0].tolist():
        columns = torch.arange(mask.shape[1]).expand_as(mask).clone()
        columns[row, int(mask[row].nonzero()[-1])] = -1
        fewer = {name: _laid_out(value, mask, columns, fill.get(name, 0.0)) for name, value in case.items()}
        # the positions that count stay, so that what is returned there can be compared
        yield Variant(f"one position less in row {row}", fewer, mask, "")


def _of_rows(value: Any, mask: Bool[Tensor, "B T"]) -> bool:
    """Return whether an argument is a tensor with an entry for each row."""
    return isinstance(value, Tensor) and value.shape[:1] == mask.shape[:1]


def _revalued(case: dict[str, Any], mask: Bool[Tensor, "B T"]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the case with other values under the mask, in one argument at a time, and the remedy."""
    empty = ~mask.any(1)
    for name, given in case.items():
        if name == "mask" or not _of_rows(given, mask) or given.dtype is torch.bool:
            continue
        if given.shape[:2] == mask.shape:
            over = (~mask).view(*mask.shape, *[1] * (given.ndim - 2))
            values, remedy = (VALUES, SELECT) if given.is_floating_point() else (_elsewhere(given, mask), OWN_MASK)
            for value in values:
                yield f"{value:g} under the mask of {name}", {**case, name: given.masked_fill(over, value)}, remedy
        elif given.is_floating_point() and given.ndim == 1 and bool(empty.any()):
            row = int(empty.nonzero()[0])
            yield f"{name} of row {row}, wholly masked, 7 larger", {**case, name: given + 7.0 * empty}, ABSENT


def _elsewhere(given: Int[Tensor, "B T *rest"], mask: Bool[Tensor, "B T"]) -> list[int]:
    """Return the smallest and the largest number that is not masked; none where the numbers tell the mask."""
    outside, inside = set(given[mask].flatten().tolist()), set(given[~mask].flatten().tolist())
    return [] if len(inside) == 1 and not inside & outside else sorted({min(outside), max(outside)})


def _laid_out(value: Any, mask: Bool[Tensor, "B T"], columns: Int[Tensor, "B W"], fill: int | float) -> Any:
    """Return an argument with its columns taken from where they are said to stand; -1 is padding."""
    if not isinstance(value, Tensor) or value.shape[:2] != mask.shape:
        return value
    over = (columns < 0).view(*columns.shape, *[1] * (value.ndim - 2))
    return value[torch.arange(len(mask))[:, None], columns].masked_fill(over, fill)


def _closed_up(mask: Bool[Tensor, "R T"]) -> Int[Tensor, "R W"]:
    """Return the columns that count, one after another; -1 where a row has no more."""
    rows = [row.nonzero()[:, 0] for row in mask]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)


def _shoved(columns: Int[Tensor, "R W"]) -> Int[Tensor, "R W"]:
    """Return the columns with their padding on the left."""
    return torch.stack([torch.cat([row[row < 0], row[row >= 0]]) for row in columns])
