"""Running foreign code where it can be stopped: in a child process, which is killed when it takes too long.

A timer inside the process is not enough: code in C does not see it, and a library that sets the same alarm cancels it.
"""

from __future__ import annotations

import math
import multiprocessing
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

from assay.errors import AssayError

START = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
"""A forked child has the function already; where there is no fork, the function must be importable."""
THREADS = 4
"""More than foreign code is likely to compute on at once."""


@dataclass(frozen=True)
class Ending:
    """How one call ended.

    Attributes:
        how: it returned, raised, did not end in time, or took its process with it.
        value: what it returned.
        why: otherwise, in words.
    """

    how: Literal["returned", "raised", "hung", "died"]
    value: Any = None
    why: str = ""


def run_each(function: Callable[[Any], Any], items: Sequence[Any], *, seconds: float) -> list[Ending]:
    """Call a function on each item, one after the other, each within a time limit.

    A call that hangs or dies costs its child process; the next item gets a fresh one.

    Args:
        function: returns something that can be pickled.
        items: what it is called with.
        seconds: for one call.

    Returns:
        One ending an item.
    """
    endings: list[Ending] = []
    while len(endings) < len(items):
        endings += _until_one_fails(function, items[len(endings) :], seconds)
    return endings


def _until_one_fails(function: Callable[[Any], Any], items: Sequence[Any], seconds: float) -> list[Ending]:
    """Return the endings of one child's calls: all of them, or those up to the one that it did not survive."""
    context = multiprocessing.get_context(START)
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_call_each, args=(theirs, function, items, seconds), daemon=True)  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        # Python 3.12 warns of every fork beside native threads; the child only runs the function and ends
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    theirs.close()
    endings: list[Ending] = []
    try:
        while len(endings) < len(items):
            if not ours.poll(seconds):
                return [*endings, Ending("hung", why=f"no answer within {seconds:g} s")]
            try:
                endings.append(ours.recv())
            except EOFError:
                child.join(seconds)
                return [*endings, Ending("died", why=f"it ended its process with exit code {child.exitcode}")]
        return endings
    finally:
        ours.close()
        child.kill()
        child.join()


def _call_each(connection: Connection, function: Callable[[Any], Any], items: Sequence[Any], seconds: float) -> None:
    _end_if_left_alone(THREADS * seconds * len(items))
    for item in items:
        try:
            ending = Ending("returned", function(item))
        except AssayError as error:
            ending = Ending("raised", why=str(error)[:300])
        except (Exception, SystemExit) as error:
            ending = Ending("raised", why=f"{type(error).__name__}: {error}"[:300])
        connection.send(ending)


def _end_if_left_alone(cpu_seconds: float) -> None:
    """Let the system end this process after more computing than its parent would wait for.

    The parent may be killed itself, and then nobody ends a call that hangs.
    """
    if START == "fork":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        most = math.ceil(cpu_seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (most if hard < 0 else min(most, hard), hard))
