"""I4: does an advantage function treat groups as what they are, the responses to one prompt instance?

The function alone is enough. Each group's advantages are compared with those that the same function gives when the
group stands alone, so no formula need be declared. Refusing a batch with an error is not a disagreement; answering
with other groups' rewards in it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.check import TOLERANCE, Check, SubjectError, answers, verdict_of
from assay.audit.invariants.findings import told_apart
from assay.audit.invariants.grouped import (
    LENGTH,
    Advantage,
    Advantages,
    GroupedRewards,
    batch_of,
    batches,
    mixed,
    value,
)

FLOAT32_NOISE = 1e-3
"""Largest advantage of a constant group in float32, where rewards near 1 are rounded at 6e-8: a floor of 1e-4 under a
standard deviation turns that into 6e-4, a floor of 1e-6 into 6e-2, which a large step follows."""
Form = Callable[[Float[Tensor, " G"]], Float[Tensor, " G"]]
FORMS: dict[str, Form] = {
    "centred": lambda reward: reward - reward.mean(),
    "leave-one-out": lambda reward: (reward - reward.mean()) * (len(reward) / (len(reward) - 1)),
    "standardised": lambda reward: (reward - reward.mean()) / reward.std(),
}
"""Definitions by name: the advantages of one group, from its rewards. ``standardised`` has n - 1 in the variance and
no floor; where yours has one, give the formula with it."""


@answers("I4")
def group_semantics(
    advantage: Callable[..., Any],
    *,
    definition: str | Form | None = None,
    scope: Literal["group", "batch"] = "group",
    group_size: int = 4,
    binary: bool = False,
    bound: float | None = None,
    tolerance: float = TOLERANCE,
) -> Check:
    """Check what an advantage function makes of groups.

    Rows in another order keep their advantages; groups do not touch each other, be they even, uneven, interleaved,
    one member short or asked by one text; other ids change nothing; every member of a group counts for the others; a
    lone response gets something finite or is refused; a constant group gets nothing, in float32 too; one success
    among failures gets something bounded; and each group gets what a declared definition says.

    Args:
        advantage: called by parameter name, see
            :data:`assay.audit.invariants.grouped.NAMES`; returns ``[B]`` or ``[B, T]``, or
            a tuple that begins with it.
        definition: one of :data:`FORMS`, or a function from one group's rewards to its advantages.
        scope: ``"batch"`` where the whole batch is normalised together on purpose, so that groups touch each other.
        group_size: of an ordinary group, at least 3.
        binary: whether rewards are 0 or 1 only.
        bound: largest advantage where rewards lie in [0, 1]; the size of the group unless given. Standardised
            advantages stay below its root, those divided by the mean below it.
        tolerance: relative, for what is computed in float64.
    """
    if isinstance(definition, str) and definition not in FORMS:
        raise SubjectError(f"definition {definition!r}: expected one of {', '.join(FORMS)}, or a function")
    if group_size < 3:
        raise SubjectError(f"group_size = {group_size}: expected at least 3, so that a group can lose a member")
    subject = Advantage(advantage)
    rows = batches(group_size, binary=binary, by_order=subject.by_order)
    trial = _Trial(subject, rows, {name: subject.tried(batch) for name, batch in rows.items()}, tolerance)
    whole = trial.made["even groups"]
    if isinstance(whole, SubjectError):
        raise whole
    even = rows["even groups"]
    findings = [*_finite(trial), *_reordered(trial, even, whole), *_members(trial, even, whole, binary)]
    findings += [] if subject.by_order else _relabelled(trial, even, whole)
    findings += _bounded(subject, binary, bound)
    if scope == "group":
        findings += [*_apart(trial), *_constant(subject, binary, tolerance)]
    if definition is not None:
        findings += _defined(trial, FORMS[definition] if isinstance(definition, str) else definition)
    refused = [name for name, answer in trial.made.items() if isinstance(answer, SubjectError)]
    return verdict_of(
        "I4",
        "order, ids, members, bounds, and groups that are uneven, short, constant or alone"
        + (f"; refused: {', '.join(refused)}" if refused else ""),
        findings,
        tolerance=tolerance,
        why="computed in float64; where float32 is tried, a constant group may keep the rounding of its rewards",
        exactness=f"{len(rows)} batches, and each of their groups alone",
        remedy="carry one id for each prompt instance, and normalise over exactly the rows that have it",
    )


@dataclass(frozen=True)
class _Trial:
    subject: Advantage
    rows: dict[str, GroupedRewards]
    made: dict[str, Advantages | SubjectError]
    tolerance: float

    def apart(self, made: Advantages, expected: Advantages) -> int | None:
        """Return the row that differs most, or None."""
        scale = max(float(expected.abs().nan_to_num(0.0, 0.0, 0.0).max()), 1.0)
        same = (made == expected) | (made.isnan() & expected.isnan())
        gap = (made - expected).abs().masked_fill(same, 0.0).nan_to_num(nan=float("inf")).amax(1)
        return int(gap.argmax()) if float(gap.max()) > self.tolerance * scale else None

    def answered(self) -> Iterator[tuple[str, GroupedRewards, Advantages]]:
        """Yield each batch that was not refused, with its advantages."""
        for name, table in self.made.items():
            if not isinstance(table, SubjectError):
                yield name, self.rows[name], table


def _finite(trial: _Trial) -> Iterator[str]:
    for name, rows, table in trial.answered():
        if not bool(table.isfinite().all()):
            row = int((~table.isfinite()).any(1).nonzero()[0])
            yield f"{name}: {rows.place(row)} has advantage {value(table, row):.6g}"
            return


def _apart(trial: _Trial) -> Iterator[str]:
    """A group has the advantages that it has alone, whatever else is in the batch."""
    for name, rows, table in trial.answered():
        for group in rows.groups():
            members, only = rows.alone(group)
            alone = trial.subject.tried(only)
            if isinstance(alone, SubjectError):
                continue
            worst = trial.apart(table[members], alone)
            if worst is not None:
                row = int(members[worst])
                one, other = told_apart(value(table, row), value(alone, worst))
                yield f"{name}: {rows.place(row)} has advantage {one}, alone {other}"
                break


def _reordered(trial: _Trial, rows: GroupedRewards, whole: Advantages) -> Iterator[str]:
    """Rows in another order keep their advantages; groups told by their order move as wholes."""
    count = len(rows.reward)
    order = torch.arange(count).flip(0) if trial.subject.by_order else mixed(count)
    table = trial.subject(rows.take(order))
    worst = trial.apart(table, whole[order])
    if worst is not None:
        row = int(order[worst])
        one, other = told_apart(value(whole, row), value(table, worst))
        yield f"rows in another order: {rows.place(row)} has advantage {one}, then {other}"


def _relabelled(trial: _Trial, rows: GroupedRewards, whole: Advantages) -> Iterator[str]:
    table = trial.subject(replace(rows, group=rows.group.max() - rows.group))
    worst = trial.apart(table, whole)
    if worst is not None:
        one, other = told_apart(value(whole, worst), value(table, worst))
        yield f"ids exchanged: {rows.place(worst)} has advantage {one}, then {other}"


def _members(trial: _Trial, rows: GroupedRewards, whole: Advantages, binary: bool) -> Iterator[str]:
    """Whoever becomes the best or the worst of its group changes, in one of the groups, what another member gets."""
    for member in range(rows.size):
        counts = False
        for row in range(member, len(rows.reward), rows.size):
            others = (rows.group == rows.group[row]) & (torch.arange(len(rows.reward)) != row)
            for new in [1.0 - float(rows.reward[row])] if binary else [float(rows.reward.max()) + 1.0, 0.0]:
                moved = replace(rows, reward=rows.reward.index_fill(0, torch.tensor([row]), new))
                counts = counts or trial.apart(trial.subject(moved)[others], whole[others]) is not None
        if not counts:
            yield f"{rows.place(member)} does not count: best or worst, it changes no other member's advantage"
            return


def _constant(subject: Advantage, binary: bool, tolerance: float) -> Iterator[str]:
    """A group whose rewards are equal gets nothing, beside one whose rewards are not."""
    for dtype, most in ((torch.float64, tolerance), (torch.float32, FLOAT32_NOISE)):
        for reward in (0.0, 1.0) if binary else (0.0, 1.0, 5.0, 0.95, 0.1, 1 / 3):
            for size in (3, 7):
                rows = _of_type(batch_of([[reward] * size, [1.0] + [0.0] * (size - 1)], size), dtype)
                table = subject(rows)[:size]
                worst = _largest(table)
                if not float(table[worst].abs().max()) <= most * max(reward, 1.0):
                    case = f"{size} equal rewards of {reward:.3g} in {_name(dtype)}"
                    yield f"{case}: {rows.place(worst)} has advantage {value(table, worst):.6g}, and must have 0"
                    return


def _bounded(subject: Advantage, binary: bool, bound: float | None) -> Iterator[str]:
    """One response unlike all others of its group has an advantage of ordinary size."""
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


def _defined(trial: _Trial, form: Form) -> Iterator[str]:
    """Each group of unequal rewards gets what the definition says."""
    for name, rows, table in trial.answered():
        for group in rows.groups():
            members, only = rows.alone(group)
            if float(only.reward.max()) == float(only.reward.min()):
                continue
            said = form(only.reward)[:, None].expand_as(table[members])
            said = torch.where(only.mask > 0, said, 0.0) if table.shape[1] == LENGTH else said
            worst = trial.apart(table[members], said)
            if worst is not None:
                row = int(members[worst])
                one, other = told_apart(value(table, row), value(said, worst))
                yield f"{name}: {rows.place(row)} has advantage {one}, by definition {other}"
                return


def _largest(table: Advantages) -> int:
    return int(table.abs().nan_to_num(nan=float("inf")).amax(1).argmax())


def _of_type(rows: GroupedRewards, dtype: torch.dtype) -> GroupedRewards:
    return replace(rows, reward=rows.reward.to(dtype))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
