"""From what a user types to the function it names."""

from __future__ import annotations

import difflib
import importlib
import sys
from pathlib import Path

from assay.audit.call import Loss
from assay.errors import InputError


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
