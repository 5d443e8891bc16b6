"""I11: a run that was interrupted and resumed is the run that was not.

Interruption is tried after every step, epoch boundaries included. What each later step consumes, how many of them
there are, and the state at the end must come out the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.audit.check import Check, SubjectError, answers, foreign, verdict_of
from assay.audit.invariants.findings import few
from assay.audit.invariants.states import State, differences


@dataclass(frozen=True)
class Leg:
    """One stretch of a run, from its start or from a checkpoint to the end of its plan.

    Attributes:
        records: of each step made: what it consumed and what it made, such as prompts, draws, loss and step number.
        checkpoints: what was saved after each step made; None where nothing was.
        state: at the end, whatever is to survive: weights, optimizer, reference, random state, step count.
    """

    records: Sequence[State]
    checkpoints: Sequence[Any]
    state: State


Train = Callable[[Any], Leg]
"""Trains to the end of the plan: from the start when given None, else from that checkpoint."""


@answers("I11")
def resume(start: Callable[[], Train], *, at: Sequence[int] | None = None, restart: bool = True) -> Check:
    """Interrupt a run after each step, resume it from what was saved there, and compare it with the run left alone.

    Args:
        start: starts a process that can train; see :data:`Train`. Called again for every resumed leg.
        at: steps to interrupt after, from 1; None takes all that left a checkpoint, but the last.
        restart: whether a resumed leg runs in a new process; False resumes in the one that has already trained.
    """
    process = foreign("the start", start)
    whole = _leg(process, None)
    if parted := _parted(_leg(foreign("the start", start), None), whole, 0):
        raise SubjectError(f"two runs that nobody interrupts differ: {parted}; fix the seeds first")
    points = range(1, len(whole.records)) if at is None else at
    saved = {step: whole.checkpoints[step - 1] for step in points if 0 < step <= len(whole.checkpoints)}
    saved = {step: checkpoint for step, checkpoint in saved.items() if checkpoint is not None}
    if not saved:
        raise SubjectError("no step to be interrupted after left a checkpoint; save after each, or name some in at")
    if not whole.state:
        raise SubjectError(
            "the state at the end is empty, so what a resumed run has lost cannot show; put the weights in"
        )
    found = []
    for step, checkpoint in saved.items():
        leg = _leg(foreign("the start", start) if restart else process, checkpoint)
        parted = _parted(leg, whole, step)
        found += [f"resumed after step {step} of {len(whole.records)}: {parted}"] if parted else []
    where = "a new process" if restart else "the same process"
    return verdict_of(
        "I11",
        f"resumed in {where}, every later step and the state at the end are those of the run left alone",
        few(found),
        why="bit for bit",
        exactness=f"interrupted after {len(saved)} of {len(whole.records)} steps",
        remedy="save and restore everything that a later step reads, and begin the next epoch afresh at its boundary",
    )


@answers("I11")
def same_state(a: State, b: State, *, tolerance: float = 0.0) -> Check:
    """Compare two checkpoints entry by entry: names, shapes, precision and values.

    With a tolerance it compares what may be rounded, such as the logits of a merged export with those of the policy
    and adapter it was made from.

    Args:
        a: one, as tensors, numbers and text by name; nested where it likes.
        b: the other, which differences are relative to.
        tolerance: 0 for bit for bit; else relative to the largest entry of each tensor.
    """
    for state in (a, b):
        if not isinstance(state, Mapping):
            raise SubjectError(f"a state is {type(state).__name__}; it must hold its entries by name")
    if not a and not b:
        raise SubjectError("both states are empty, so there is nothing to compare")
    found = few(differences(a, b, tolerance))
    return verdict_of(
        "I11",
        "two states are the same",
        found,
        tolerance=tolerance,
        why="relative to the largest entry of each tensor" if tolerance else "bit for bit",
        exactness=f"{len(b)} entries",
        remedy="save and restore every entry that is named",
    )


def _leg(train: Train, checkpoint: Any) -> Leg:
    leg: Leg = foreign("the training", train, checkpoint)
    sequences = isinstance(leg, Leg) and isinstance(leg.records, Sequence) and isinstance(leg.checkpoints, Sequence)
    if not sequences or len(leg.records) != len(leg.checkpoints) or not isinstance(leg.state, Mapping):
        raise SubjectError("the training must return a Leg, with a checkpoint or None for each of its records")
    if checkpoint is None and not leg.records:
        raise SubjectError("the training made no step, so there is nothing to interrupt")
    return leg


def _parted(leg: Leg, whole: Leg, step: int) -> str:
    """Return where a resumed leg first parts from the run left alone; nothing where it does not."""
    left = whole.records[step:]
    for number, (made, expected) in enumerate(zip(leg.records, left, strict=False), start=step + 1):
        for difference in differences(made, expected):
            return f"in step {number}, {difference}"
    if len(leg.records) != len(left):
        return f"it makes {len(leg.records)} steps, {len(left)} were left"
    for difference in differences(leg.state, whole.state):
        return f"at the end, {difference}"
    return ""
