"""Functions that a user names in words: ``"package.module:function"``."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assay.errors import ConfigError


@contextmanager
def working_directory_importable() -> Iterator[None]:
    """Let modules of the working directory be imported; the old path is restored afterwards."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def find_function(name: str, what: str) -> Callable[..., Any]:
    """Import a function from the working directory or the environment.

    Args:
        name: ``"package.module:function"``.
        what: what it is for, as a message says it, such as ``"reward"``.

    Raises:
        ConfigError: the name has another form, the module cannot be imported, or it holds no such function.
    """
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise ConfigError(f"{what} {name!r}: expected package.module:function")
    try:
        with working_directory_importable():
            found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # someone else's module: whatever importing it raises is why it failed
        raise ConfigError(f"{what} {name!r}: cannot import {module_name} ({type(error).__name__}: {error})") from error
    near = difflib.get_close_matches(path, [key for key, made in vars(found).items() if callable(made)], n=1)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        hint = f"; did you mean {module_name}:{near[0]}?" if near else ""
        raise ConfigError(f"{what} {name!r}: {module_name} has no function {path}{hint}")
    function: Callable[..., Any] = found
    return function


def name_of(function: Callable[..., Any], what: str) -> str:
    """Return the words that name a function, so that another process can import it.

    Raises:
        ConfigError: it stands in the script that is running, inside another function, or nowhere.
    """
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module in (None, "__main__") or path is None or "<" in path:
        raise ConfigError(
            f"{what} {function!r} cannot be imported by another process; define it at the top level of a module"
        )
    return f"{module}:{path}"
