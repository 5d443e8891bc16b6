"""I11: a run that was interrupted and resumed is the run that was not.

Interruption is tried after every step, epoch boundaries included. What each later step consumes, how many of them
there are, and the state at the end must come out the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.audit.check import Check, SubjectError, answers, foreign, verdict_of

State = Mapping[str, Any]
"""Tensors, arrays, numbers, text, and mappings and sequences of them, by name."""


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
    found = []
    for step, checkpoint in saved.items():
        leg = _leg(foreign("the start", start) if restart else process, checkpoint)
        parted = _parted(leg, whole, step)
        found += [f"resumed after step {step} of {len(whole.records)}: {parted}"] if parted else []
    where = "a new process" if restart else "the same process"
    return verdict_of(
        "I11",
        f"resumed in {where}, every later step and the state at the end are those of the run left alone",
        found,
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
    if not a and not b:
        raise SubjectError("both states are empty, so there is nothing to compare")
    found = list(_differences(a, b, tolerance, ""))
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
    leg = foreign("the training", train, checkpoint)
    if not isinstance(leg, Leg) or len(leg.records) != len(leg.checkpoints):
        raise SubjectError("the training must return a Leg, with a checkpoint or None for each of its records")
    if checkpoint is None and not leg.records:
        raise SubjectError("the training made no step, so there is nothing to interrupt")
    return leg


def _parted(leg: Leg, whole: Leg, step: int) -> str:
    """Return where a resumed leg first parts from the run left alone; nothing where it does not."""
    left = whole.records[step:]
    for number, (made, expected) in enumerate(zip(leg.records, left, strict=False), start=step + 1):
        for difference in _differences(made, expected, 0.0, ""):
            return f"in step {number}, {difference}"
    if len(leg.records) != len(left):
        return f"it makes {len(leg.records)} steps, {len(left)} were left"
    for difference in _differences(leg.state, whole.state, 0.0, ""):
        return f"at the end, {difference}"
    return ""


def _differences(a: Any, b: Any, tolerance: float, name: str) -> Iterator[str]:
    """Yield what is not the same in two values, each with its name and both."""
    a, b = _as_tensor(a), _as_tensor(b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in sorted(a.keys() | b.keys(), key=str):
            inner = f"{name}.{key}" if name else str(key)
            if key not in a or key not in b:
                yield f"{inner} is {'missing' if key not in a else 'unexpected'}"
            else:
                yield from _differences(a[key], b[key], tolerance, inner)
    elif isinstance(a, Tensor) and isinstance(b, Tensor):
        yield from _tensor_difference(a.detach(), b.detach(), tolerance, name)
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        for place, (left, right) in enumerate(zip(a, b, strict=True)):
            yield from _differences(left, right, tolerance, f"{name}[{place}]")
    elif isinstance(a, Tensor) or isinstance(b, Tensor) or type(a) is not type(b) or not _equal(a, b):
        yield f"{name} is {_short(a)}, not {_short(b)}"


def _tensor_difference(a: Tensor, b: Tensor, tolerance: float, name: str) -> Iterator[str]:
    if a.shape != b.shape or (a.dtype != b.dtype and not tolerance):
        yield f"{name} is {a.dtype} {tuple(a.shape)}, not {b.dtype} {tuple(b.shape)}"
        return
    if a.numel() == 0:
        return
    if tolerance:
        near = (a.double() - b.double()).abs() <= tolerance * b.double().abs().max()
    else:
        near = (a == b) & (a.signbit() == b.signbit()) | (a.isnan() & b.isnan())
    if bool(near.all()):
        return
    place = tuple(int(i) for i in (~near).nonzero()[0])
    count = f" (and {int((~near).sum()) - 1} more of {near.numel()})" if int((~near).sum()) > 1 else ""
    yield f"{name}{list(place) if place else ''} is {a[place].item()!r}, not {b[place].item()!r}{count}"


def _as_tensor(value: Any) -> Any:
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


def _equal(a: Any, b: Any) -> bool:
    return bool(a == b) or (isinstance(a, float) and a != a and b != b)


def _short(value: Any) -> str:
    text = f"a tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
