"""Calling someone's function with what its parameters are named after."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from assay.audit.check import SubjectError, foreign


def parameters_of(what: str, function: Callable[..., Any], offered: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parameters that a function is to be called with: all it requires, and what it can also have.

    Args:
        what: how a message names it, such as ``"the grader"``.
        function: what is to be called.
        offered: what there is, by name.

    Raises:
        SubjectError: it requires something that there is not, or does not say what it takes.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except Exception as error:  # its own code may run: a signature, a repr
        raise SubjectError(f"{what} does not say what it takes ({error}); wrap it in a function that does") from error
    plain = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    for parameter in plain:
        required = parameter.default is parameter.empty
        if required and (parameter.name not in offered or parameter.kind is parameter.POSITIONAL_ONLY):
            raise SubjectError(f"{what} asks for {parameter.name!r}; it can have {', '.join(offered)}")
    return tuple(p.name for p in plain if p.name in offered and p.kind is not p.POSITIONAL_ONLY)


def call_by_name(what: str, function: Callable[..., Any], offered: Mapping[str, Any]) -> Any:
    """Call a function with those of the offered values that it has parameters for.

    Raises:
        SubjectError: it requires something that there is not, or raises.
    """
    return foreign(what, function, **{name: offered[name] for name in parameters_of(what, function, offered)})
