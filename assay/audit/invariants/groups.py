"""I4: does an advantage function treat groups as what they are, the responses to one prompt instance?

The function alone is enough. Each group's advantages are compared with those that the same function gives when the
group stands alone, so no formula need be declared. Refusing a batch with an error is not a disagreement; answering
with other groups' rewards in it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from assay.audit.check import TOLERANCE, Check, SubjectError, answers, verdict_of
from assay.audit.invariants.definitions import Form, read_definition
from assay.audit.invariants.extremes import Noise, bounded, constant
from assay.audit.invariants.findings import few, told_apart
from assay.audit.invariants.grouped import (
    LENGTH,
    Advantage,
    Advantages,
    GroupedRewards,
    batches,
    mixed,
    value,
)


@answers("I4")
def group_semantics(
    advantage: Callable[..., Any],
    *,
    definition: str | Form | None = None,
    scope: Literal["group", "batch"] = "group",
    group_size: int = 4,
    binary: bool = False,
    monotone: bool = True,
    bound: float | None = None,
    tolerance: float = TOLERANCE,
) -> Check:
    """Check what an advantage function makes of groups.

    Rows in another order keep their advantages; groups do not touch each other, be they even, uneven, interleaved,
    one member short or asked by one text; other ids change nothing; every member of a group counts for the others; a
    higher reward never gets a lower advantage than another one of its group; a lone response gets something finite or
    is refused; a constant group gets nothing, in float32 at most :data:`assay.audit.invariants.extremes.NOISE`; one
    success among failures gets something bounded; and each group gets what a declared definition says.

    Args:
        advantage: called by parameter name, see
            :data:`assay.audit.invariants.grouped.NAMES`; returns ``[B]`` or ``[B, T]``, or
            a tuple that begins with it.
        definition: one of :data:`assay.audit.invariants.definitions.FORMS`, or a function from one group's rewards to
            its advantages.
        scope: ``"batch"`` where the whole batch is normalised together on purpose, so that groups touch each other.
        group_size: of an ordinary group, at least 3.
        binary: whether rewards are 0 or 1 only.
        monotone: whether a higher reward is to get no lower advantage; not asked where a definition says what it gets.
        bound: largest advantage where rewards lie in [0, 1]; the size of the group unless given. Standardised
            advantages stay below its root, those divided by the mean below it.
        tolerance: relative, for what is computed in float64.
    """
    form = read_definition(definition)
    if group_size < 3:
        raise SubjectError(f"group_size = {group_size}: expected at least 3, so that a group can lose a member")
    if scope not in ("group", "batch"):
        raise SubjectError(f"scope = {scope!r}: expected 'group' or 'batch'")
    trial = _try(Advantage(advantage), group_size, binary, tolerance)
    noise = constant(trial.subject, binary, tolerance) if scope == "group" else Noise()
    findings = [*_finite(trial), *_reordered(trial), *_members(trial, binary), *_relabelled(trial)]
    findings += [*bounded(trial.subject, binary, bound), *noise.findings]
    findings += _apart(trial) if scope == "group" else []
    findings += _ordered(trial) if monotone and form is None else []
    findings += _defined(trial, form) if form is not None else []
    return verdict_of(
        "I4",
        _detail(trial, noise),
        few(findings, 12),
        tolerance=tolerance,
        why="computed in float64; where float32 is tried, a constant group may keep the rounding of its rewards",
        exactness=f"{len(trial.rows)} batches, and each of their groups alone",
        remedy="carry one id for each prompt instance, and normalise over exactly the rows that have it",
    )


@dataclass(frozen=True)
class _Trial:
    subject: Advantage
    rows: dict[str, GroupedRewards]
    made: dict[str, Advantages | SubjectError]
    whole: Advantages
    tolerance: float

    @property
    def even(self) -> GroupedRewards:
        """Return the ordinary batch, whose advantages are ``whole``."""
        return self.rows["even groups"]

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


def _detail(trial: _Trial, noise: Noise) -> str:
    """Return what was compared, what was refused, and what float32 leaves of a constant group."""
    refused = [name for name, answer in trial.made.items() if isinstance(answer, SubjectError)]
    parts = ["order, ids, members, bounds, and groups that are uneven, short, constant or alone"]
    parts += [f"refused: {', '.join(refused)}"] if refused else []
    return "; ".join([*parts, noise.note] if noise.note else parts)


def _try(subject: Advantage, size: int, binary: bool, tolerance: float) -> _Trial:
    """Call an advantage function on every batch; one that refuses the ordinary batch cannot be audited."""
    rows = batches(size, binary=binary, by_order=subject.by_order)
    made = {name: subject.tried(batch) for name, batch in rows.items()}
    whole = made["even groups"]
    if isinstance(whole, SubjectError):
        raise whole
    return _Trial(subject, rows, made, whole, tolerance)


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


def _reordered(trial: _Trial) -> Iterator[str]:
    """Rows in another order keep their advantages; groups told by their order move as wholes."""
    rows, whole = trial.even, trial.whole
    count = len(rows.reward)
    order = torch.arange(count).flip(0) if trial.subject.by_order else mixed(count)
    table = trial.subject(rows.take(order))
    worst = trial.apart(table, whole[order])
    if worst is not None:
        row = int(order[worst])
        one, other = told_apart(value(whole, row), value(table, worst))
        yield f"rows in another order: {rows.place(row)} has advantage {one}, then {other}"


def _relabelled(trial: _Trial) -> Iterator[str]:
    rows, whole = trial.even, trial.whole
    if trial.subject.by_order:
        return
    table = trial.subject(replace(rows, group=rows.group.max() - rows.group))
    worst = trial.apart(table, whole)
    if worst is not None:
        one, other = told_apart(value(whole, worst), value(table, worst))
        yield f"ids exchanged: {rows.place(worst)} has advantage {one}, then {other}"


def _members(trial: _Trial, binary: bool) -> Iterator[str]:
    """Whoever becomes the best or the worst of its group changes, in one of the groups, what another member gets."""
    rows, whole = trial.even, trial.whole
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


def _ordered(trial: _Trial) -> Iterator[str]:
    """A higher reward never gets a lower advantage within its group, where a response has one advantage."""
    for name, rows, table in trial.answered():
        unused = _unused(rows, table)
        low, high = table.masked_fill(unused, math.inf).amin(1), table.masked_fill(unused, -math.inf).amax(1)
        slack = trial.tolerance * max(float(table.abs().nan_to_num(0.0, 0.0, 0.0).max()), 1.0)
        whole = high - low <= slack
        pairs = (rows.group[:, None] == rows.group) & (rows.reward[:, None] > rows.reward) & whole[:, None] & whole
        wrong = (pairs & (high[:, None] < low - slack)).nonzero()
        if len(wrong):
            better, worse = wrong[0].tolist()
            one, other = told_apart(value(table, better), value(table, worse))
            yield (
                f"{name}: {rows.place(better)} has advantage {one}, and row {worse} of the same group, with the lower "
                f"reward {float(rows.reward[worse]):.3g}, has {other}"
            )
            return


def _unused(rows: GroupedRewards, table: Advantages) -> Bool[Tensor, "B X"]:
    """Return where a table holds nothing of a response's own."""
    return rows.mask == 0 if table.shape[1] == LENGTH else torch.zeros_like(table, dtype=torch.bool)


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
