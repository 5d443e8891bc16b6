"""An installed library that an adapter was written for: its version, its import, its settings from ``--set`` pairs."""

from __future__ import annotations

import difflib
import importlib.metadata
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from assay.audit.check import SubjectError
from assay.errors import ConfigError

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Option:
    """A setting of a library, by the library's own name.

    Attributes:
        kind: its type, such as ``float`` or ``str | None``.
        default: the library's own.
        needs: what else must be set for the library to read it, in words.
        live: whether the library reads it, given all settings.
    """

    kind: Any
    default: object
    needs: str = ""
    live: Callable[[Settings], bool] = lambda settings: True


def require(library: str, version: str, remedy: str) -> dict[str, str]:
    """Return the versions of a library and of torch.

    Args:
        library: its distribution name.
        version: the one release that the adapter was written for.
        remedy: how to install it.

    Raises:
        SubjectError: it is missing or of another version.
    """
    try:
        found = importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        raise SubjectError(f"{library} is not installed; this adapter needs {version}: {remedy}") from None
    if found != version:
        raise SubjectError(f"{library} {found} is installed; this adapter was written for {version}: {remedy}")
    return {name: importlib.metadata.version(name) for name in (library, "torch")}


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings and log lines of a library."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


@contextmanager
def quiet_import(library: str, remedy: str) -> Iterator[None]:
    """Import a library without its warnings and log lines.

    Args:
        library: for messages.
        remedy: how to install what it needs.

    Raises:
        SubjectError: the import fails.
    """
    try:
        with quiet():
            yield
    except (Exception, SystemExit) as error:  # someone else's module: whatever importing it raises is why it failed
        raise SubjectError(f"{library} cannot be imported ({type(error).__name__}: {error}): {remedy}") from error


def settings_in_force(
    subject: str, given: Mapping[str, str], options: Mapping[str, Option], fixed: Settings
) -> dict[str, Any]:
    """Return every setting with its value: what was given, read by its type, and the library's defaults.

    Args:
        subject: for messages, with the library's version.
        given: from ``--set``; ``none`` and ``null`` are no value.
        options: what there is to set.
        fixed: settings that the subject's name decides.

    Raises:
        ConfigError: a setting is unknown, malformed, or one that the library would not read.
    """
    made = {name: option.default for name, option in options.items()}
    made |= {name: _read(subject, name, text, options) for name, text in given.items()} | dict(fixed)
    for name, text in given.items():
        if not options[name].live(made):
            raise ConfigError(f"{subject}, --set {name}={text}: it is not read without {options[name].needs}")
    return made


def _read(subject: str, name: str, text: str, options: Mapping[str, Option]) -> Any:
    where = f"{subject}, --set {name}={text}"
    if name not in options:
        near = difflib.get_close_matches(name, options, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"{where}: {hint}it can be one of {', '.join(options)}")
    kind = options[name].kind
    value = None if text.lower() in ("none", "null") else text.split(",") if "," in text else text
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        expected = error.errors()[0]["msg"][:1].lower() + error.errors()[0]["msg"][1:]
        raise ConfigError(f"{where}: {expected}") from None
