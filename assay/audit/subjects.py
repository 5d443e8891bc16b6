"""From what a user types to the function it names."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from assay.audit.call import Loss
from assay.errors import ConfigError, InputError

if TYPE_CHECKING:
    from assay.audit.trainers import TrainerSubject


@dataclass(frozen=True)
class Subject:
    """A loss, and what is to be known about it before it is audited.

    Attributes:
        name: what the user typed, such as ``"trl.grpo"``.
        loss: called by parameter name; see :data:`assay.audit.call.NAMES`.
        objective: what it is said to ascend, where the user says nothing else; a function where that depends on
            the group size.
        estimand: the same in words, with its source.
        settings: every setting that was in force, defaults included.
        versions: of the packages whose code runs.
        reaches: which of the library's own code is executed.
        misses: what of its path is not.
        tolerance: relative; larger than ours where the library itself computes in float32. None leaves it to what
            the loss is seen to compute in.
        why: why the tolerance is that.
    """

    name: str
    loss: Loss
    objective: str | Callable[[int], str] = "reward"
    estimand: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    reaches: str = ""
    misses: str = ""
    tolerance: float | None = None
    why: str = "everything is float64"

    def declared(self, group_size: int) -> str:
        """Return the objective for groups of one size."""
        return self.objective if isinstance(self.objective, str) else self.objective(group_size)


@runtime_checkable
class TrainerMaker(Protocol):
    """Builds a whole trainer from ``--set`` pairs."""

    def __call__(self, pairs: Mapping[str, str], *, group_size: int) -> TrainerSubject:
        """Return the trainer with groups of one size."""
        ...


Maker = Callable[[Mapping[str, str]], Subject]
"""Builds a subject from ``--set`` pairs; raises ConfigError for a setting it does not know, with the list, and
SubjectError where the library is missing or of another version."""


def load(subject: str) -> Loss:
    """Import the loss that ``"package.module:function"`` names, from the working directory or the environment.

    Raises:
        InputError: the name has another form, the module cannot be imported, or holds no such function.
    """
    module_name, _, name = subject.partition(":")
    if not module_name or not name:
        raise InputError(f"subject {subject!r}: expected seed, or a function as package.module:function")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # someone else's module: whatever importing it raises is why it failed
        raise InputError(
            f"subject {subject!r}: cannot import {module_name} ({type(error).__name__}: {error})"
        ) from error
    finally:
        sys.path.remove(here)
    function = getattr(module, name, None)
    if not callable(function):
        near = difflib.get_close_matches(name, [key for key, made in vars(module).items() if callable(made)], n=1)
        hint = f"; did you mean {module_name}:{near[0]}?" if near else ""
        raise InputError(f"subject {subject!r}: {module_name} has no function {name}{hint}")
    loss: Loss = function
    return loss


ADAPTERS = ("own", "trl", "verl", "openrlhf")
"""The modules of :mod:`assay.audit.adapters`."""


def named_subjects() -> dict[str, Maker]:
    """Return the maker of every subject that has a name; no library is imported."""
    makers: dict[str, Maker] = {}
    for module in ADAPTERS:
        makers |= importlib.import_module(f"assay.audit.adapters.{module}").SUBJECTS
    return makers


def named_trainers() -> dict[str, TrainerMaker]:
    """Return the maker of every whole trainer that has a name; no library is imported."""
    trainers: dict[str, TrainerMaker] = importlib.import_module("assay.audit.adapters.trl_trainer").TRAINERS
    return trainers


def find_trainer(subject: str, settings: Sequence[str], *, group_size: int) -> TrainerSubject:
    """Return the whole trainer of a name.

    Raises:
        ConfigError: a setting is unknown, malformed or would not be read.
        SubjectError: the library is missing or of another version.
    """
    return named_trainers()[subject](_pairs(settings), group_size=group_size)


def available() -> dict[str, str]:
    """Return a note for every subject that has a name: the library that is here, or that it is not."""
    notes = {}
    for name in (*named_subjects(), *named_trainers()):
        library = name.partition(".")[0]
        try:
            notes[name] = f"{library} {importlib.metadata.version(library)}"
        except importlib.metadata.PackageNotFoundError:
            notes[name] = f"{library} is not installed"
    return notes


def find(subject: str, settings: Sequence[str] = ()) -> Subject:
    """Return the subject that a user's words name.

    Args:
        subject: a name such as ``"trl.grpo"``, or ``"package.module:function"``.
        settings: ``"key=value"`` pairs for a subject that has a name.

    Raises:
        InputError: there is no such subject.
        ConfigError: a setting is unknown, malformed, or given to a function.
        SubjectError: the library is missing or of another version.
    """
    if ":" in subject:
        if settings:
            raise ConfigError(f"--set {settings[0]}: a python function takes no settings; bind them in the function")
        return Subject(subject, load(subject))
    makers = named_subjects()
    if subject not in makers:
        near = difflib.get_close_matches(subject, makers, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(
            f"subject {subject!r}: expected seed, package.module:function, or a name of assay audit --list{hint}"
        )
    return makers[subject](_pairs(settings))


def _pairs(settings: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key or key in pairs:
            raise ConfigError(f"--set {text}: expected key=value, each key once")
        pairs[key] = value
    return pairs
