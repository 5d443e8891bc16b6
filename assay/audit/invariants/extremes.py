"""What an advantage function makes of extreme groups: rewards that are all equal, and one unlike all others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from assay.audit.invariants.grouped import Advantage, Advantages, GroupedRewards, batch_of, value

NOISE = 0.1
"""Largest advantage of a constant group in float32 that is no finding; an ordinary advantage is about 1.

Rewards near 1 are rounded at 6e-8, so the mean of a constant group may miss its rewards by that, and a deviation that
ought to be 0 is about as large. A floor under it of 1e-4 turns that into an advantage of 6e-4, one of 1e-6 into 0.06,
one of 1e-8 into 0.9. Up to 0.1 the group pushes its responses by little, and as often up as down; beyond that it
weighs as much as a group that was told apart. What is above :data:`NOTED` is said in either case."""
NOTED = 1e-3
"""Largest that is not worth a word."""


@dataclass(frozen=True)
class Noise:
    """What constant groups get.

    Attributes:
        findings: where that is too much.
        note: what is said of the rounding that float32 leaves, where it is not too much.
    """

    findings: tuple[str, ...] = ()
    note: str = ""


def constant(subject: Advantage, binary: bool, tolerance: float) -> Noise:
    """Try groups whose rewards are equal, each beside one whose rewards are not: they get nothing."""
    exact = _largest_of_constant(subject, binary, torch.float64)
    if not exact[0] <= tolerance:
        return Noise((f"{exact[1]}, and must have 0",))
    worst, case = _largest_of_constant(subject, binary, torch.float32)
    said = f"{case}, the rounding of its rewards over a small floor: decide by max == min whether a group is constant"
    if not worst <= NOISE:
        return Noise((said,))
    return Noise(note=said if worst > NOTED else "")


def bounded(subject: Advantage, binary: bool, bound: float | None) -> Iterator[str]:
    """Try groups with one response unlike all others: it has an advantage of ordinary size."""
    odd_ones = [(1.0, 0.0), (0.0, 1.0)] + ([] if binary else [(0.0, 0.95), (0.95, 1.0), (0.0, 0.1)])
    for dtype in (torch.float64, torch.float32):
        for odd, rest in odd_ones:
            for size in (3, 4, 8):
                rows = _of_type(batch_of([[odd] + [rest] * (size - 1), [0.0, 1.0] + [0.0] * (size - 2)], size), dtype)
                table, most = subject(rows), float(size) if bound is None else bound
                worst = _largest(table)
                if not float(table[worst].abs().max()) <= most:
                    case = f"a reward of {odd:.3g} among {size - 1} of {rest:.3g} in {_name(dtype)}"
                    yield f"{case}: {rows.place(worst)} has advantage {value(table, worst):.6g}, beyond {most:.3g}"
                    return


def _largest_of_constant(subject: Advantage, binary: bool, dtype: torch.dtype) -> tuple[float, str]:
    """Return the largest advantage of a constant group, relative to its reward or 1, and where it is."""
    made = []
    for reward in (0.0, 1.0) if binary else (0.0, 1.0, 5.0, 0.95, 0.1, 1 / 3):
        for size in (3, 7):
            rows = _of_type(batch_of([[reward] * size, [1.0] + [0.0] * (size - 1)], size), dtype)
            table = subject(rows)[:size]
            worst = _largest(table)
            relative = float(table[worst].abs().nan_to_num(nan=float("inf"), posinf=float("inf")).max()) / max(
                reward, 1.0
            )
            case = f"{size} equal rewards of {reward:.3g} in {_name(dtype)}"
            made.append((relative, f"{case}: {rows.place(worst)} has advantage {value(table, worst):.6g}"))
    return max(made, key=lambda pair: pair[0])


def _largest(table: Advantages) -> int:
    return int(table.abs().nan_to_num(nan=float("inf")).amax(1).argmax())


def _of_type(rows: GroupedRewards, dtype: torch.dtype) -> GroupedRewards:
    return replace(rows, reward=rows.reward.to(dtype))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
