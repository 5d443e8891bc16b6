"""What runs in the grading process: read a batch, grade it, answer; one line a row.

It answers in JSON on a pipe of its own, so nothing that a grader prints can be taken for an answer, and the trainer
unpickles nothing that foreign code has written.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from assay.errors import AssayError
from assay.tasks.rewards import Convention, RewardError
from assay.tasks.scorers import make_scorer
from assay.tasks.submission import Scorer, Submission

Tell = Callable[..., None]
MIB = 2**20


def serve(tasks: int, answers: int, lifeline: int, *, reward: str, convention: Convention, memory: int) -> None:
    """Grade batches until there are no more.

    Args:
        tasks: file descriptor to read pickled ``(whole, submissions)`` from.
        answers: file descriptor to write lines of JSON to: ``["ready", whole]`` or ``["refused", words]`` once; then
            ``["marks", marks]``, ``["failed", words]`` or ``["invalid", words, row]`` for each call of the grader;
            ``["spent", words]`` is a failure that also ends this process.
        lifeline: file descriptor of a pipe that the trainer holds the other end of.
        reward: what grades; see :func:`assay.tasks.scorers.make_scorer`.
        convention: how it is called.
        memory: MiB that it may use beyond what it has when it is ready.
    """
    _die_with(lifeline)

    def tell(*message: Any) -> None:
        line = (json.dumps(message) + "\n").encode()
        while line:
            line = line[os.write(answers, line) :]

    try:
        scorer = make_scorer(reward, convention)
    except AssayError as error:
        return tell("refused", str(error))
    _limit_memory(memory)
    tell("ready", scorer.whole)
    with os.fdopen(tasks, "rb") as stream:
        while True:
            try:
                whole, submissions = pickle.load(stream)
            except EOFError:
                return
            _grade(scorer, [submissions] if whole else [[each] for each in submissions], tell, memory)


def _grade(scorer: Scorer, batches: Sequence[Sequence[Submission]], tell: Tell, memory: int) -> None:
    for batch in batches:
        try:
            marks = scorer.score(batch)
        except RewardError as error:
            return tell("invalid", str(error), error.row)
        except MemoryError:
            tell("spent", f"it needs more than {memory} MiB")
            os._exit(1)
        except BaseException as error:  # a grader may raise anything, SystemExit too
            tell("failed", f"{type(error).__name__}: {error}"[:300])
        else:
            tell("marks", marks)


def _limit_memory(mib: int) -> None:
    """Let this process take so much more memory than it has now; on Linux, elsewhere nothing limits it.

    Address space would be the wrong measure: libraries reserve much more of it than they use.
    """
    if sys.platform == "linux":
        import resource

        with open("/proc/self/status") as status:
            has = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData:"))
        most = has + mib * MIB
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _die_with(lifeline: int) -> None:
    """Have the kernel kill this process and its children when the other end of a pipe closes, whatever they do.

    That end closes with the trainer, kill -9 included. On Linux; elsewhere this process ends when it next wants work.
    """
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
