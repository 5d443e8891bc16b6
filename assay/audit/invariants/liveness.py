"""I5: every option of a loss changes its gradient, or is refused."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.call import Batch, Group, Loss, make_batch, slope
from assay.audit.check import TOLERANCE, Check, SubjectError, answers, foreign, verdict_of
from assay.audit.invariants.findings import few
from assay.tree.world import World
from assay.tree.worlds import far_world

Make = Callable[..., Loss]
"""Turns options into a loss that is called by parameter name."""
REFUSALS = (TypeError, ValueError, LookupError, NotImplementedError, AssertionError)
"""What an option is refused with; anything else that is raised is a crash."""
UNKNOWN = "no_such_option"
_STRIDES = (1, 4, 7)
Reading = tuple[float, Float[Tensor, "B T V"]]
"""What a loss is on a batch, and its derivative."""


@answers("I5")
def liveness(
    make: Make,
    options: Mapping[str, Any],
    *,
    given: Mapping[str, Any] | None = None,
    world: World | None = None,
    group_size: int = 3,
) -> Check:
    """Check that every option, moved alone, changes the gradient on some batch or is refused with an error.

    A coefficient that changes the loss's value and not its gradient is inert: nothing that is trained with it differs.
    An unknown option must be refused; a ``**kwargs`` that swallows it hides every misspelling. Refusals are quoted, so
    that a crash of one of these kinds can be told from a refusal.

    Args:
        make: called with options by name; returns a loss. To refuse an option it raises one of :data:`REFUSALS`.
        options: the value that each option is moved to, which must not be the one it has.
        given: options in force throughout, such as the coefficient of a term that another option shapes.
        world: problems in which the options can act; None takes :func:`assay.tree.worlds.far_world`.
        group_size: responses in a group.
    """
    if not options:
        raise SubjectError("no option to move; name at least one with the value it is moved to")
    fixed, batches = dict(given or {}), _batches(world or far_world(), group_size)
    _moves(make, options, fixed)
    base = _base(_made(make, fixed), batches)
    findings, refused = [], []
    for name, value in options.items():
        loss = _moved(make, {**fixed, name: value})
        if isinstance(loss, str):
            refused.append(f"{name} ({loss})")
        elif found := _inert(base, _readings(loss, batches)):
            findings.append(f"{name} = {value!r} {found}")
    detail = f"{', '.join(options)} moved one at a time"
    detail += f"; refused: {', '.join(refused)}" if refused else ""
    rows = sum(len(batch.reward) for batch in batches)
    return verdict_of(
        "I5",
        detail,
        [*few(findings), *_swallowed(make, fixed)],
        tolerance=TOLERANCE,
        why="relative; a smaller change is rounding",
        exactness=f"{len(batches)} batches, {rows} responses",
        remedy="let the option reach the gradient, or raise an error that says why it cannot act",
    )


def _moves(make: Make, options: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    """Raise a :class:`SubjectError` where an option is moved to the value it has."""
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return  # it does not say what its options are before they are moved
    has = {name: parameter.default for name, parameter in parameters.items()} | dict(fixed)
    for name, value in options.items():
        if name in has and foreign(f"comparing two values of {name}", lambda a, b: bool(a == b), has[name], value):
            raise SubjectError(f"{name} is moved to {value!r}, the value that it has; name another one")


def _made(make: Make, options: Mapping[str, Any]) -> Loss:
    loss: Loss = foreign("the maker of the loss", make, **options)
    return _callable(loss)


def _callable(loss: Any) -> Loss:
    if not callable(loss):
        raise SubjectError(f"the maker of the loss returned {type(loss).__name__}; it must return a loss to be called")
    foreign("reading what the loss asks for", inspect.signature, loss)
    made: Loss = loss
    return made


def _base(loss: Loss, batches: list[Batch]) -> list[Reading]:
    """Return what a loss reads before anything moves; one that reads otherwise the next time has nothing to move."""
    base, again = _readings(loss, batches), _readings(loss, batches)
    for (value, slopes), (next_value, next_slopes) in _pairs(base, again):
        if value != next_value or not torch.equal(slopes, next_slopes):
            raise SubjectError(
                f"the loss is {value:.6g} and then {next_value:.6g} on one batch: fix its random numbers"
            )
    return base


def _moved(make: Make, options: Mapping[str, Any]) -> Loss | str:
    """Return the loss with its options; where they are refused, the refusal in words."""
    try:
        loss: Loss = make(**options)
    except REFUSALS as error:
        return f"{type(error).__name__}: {error}"
    except (Exception, SystemExit) as error:
        raise SubjectError(f"the maker of the loss raised {type(error).__name__}: {error}") from error
    return _callable(loss)


def _swallowed(make: Make, fixed: Mapping[str, Any]) -> list[str]:
    try:
        make(**{**fixed, UNKNOWN: 1.0})
    except (Exception, SystemExit):
        return []
    return [f"the unknown option {UNKNOWN!r} is accepted: a misspelt option would be too"]


def _inert(base: list[Reading], moved: list[Reading]) -> str | None:
    """Return in what way an option does nothing; None where it changes a gradient."""
    scale = max(float(slopes.abs().max()) for _, slopes in base) or 1.0
    if any(not bool(((one - other).abs() <= TOLERANCE * scale).all()) for (_, one), (_, other) in _pairs(base, moved)):
        return None
    for (before, _), (after, _) in _pairs(base, moved):
        if abs(after - before) > TOLERANCE * max(1.0, abs(before)):
            return f"changes the loss's value ({before:.6g} to {after:.6g}) and no gradient"
    return "changes neither the loss's value nor its gradient on any batch"


def _pairs(base: list[Reading], moved: list[Reading]) -> list[tuple[Reading, Reading]]:
    return list(zip(base, moved, strict=True))


def _readings(loss: Loss, batches: list[Batch]) -> list[Reading]:
    values: list[float] = []

    @functools.wraps(loss)
    def watched(**given: Any) -> Any:
        value = loss(**given)
        values.append(float(value.detach()) if isinstance(value, Tensor) and value.numel() == 1 else float("nan"))
        return value

    return [(values[-1], slopes) for slopes in (slope(watched, batch) for batch in batches)]


def _batches(world: World, size: int) -> list[Batch]:
    """Return batches in which every response to every problem occurs, in several kinds of company."""
    made = []
    for stride in _STRIDES:
        groups: list[Group] = []
        for number, problem in enumerate(world):
            responses = len(problem.tree.path)
            members = torch.arange(responses + (-responses) % size).mul(stride) % responses
            groups += [(number, group) for group in members.view(-1, size)]
        made.append(make_batch(world, groups))
    return made
