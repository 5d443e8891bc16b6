"""The trainer's end of a grading process: start it, hand it work, wait with a limit, kill it."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import time
import weakref
from typing import Any

from assay.errors import ConfigError

_BOOT = (
    "import json, sys; setup = json.loads(sys.argv[1]); sys.path[:] = setup.pop('path'); "
    "from assay.tasks.worker import serve; serve(**setup)"
)
START_LIMIT = 300.0
"""Seconds a grader may take to import what it needs."""


class GradingProcess:
    """A fresh interpreter that grades; not a fork, which would take over locks of the trainer's threads.

    It is the leader of a session of its own, so that killing it kills what it has started, and Ctrl-C in the terminal
    is the trainer's alone. What it prints goes nowhere. Texts hash alike in every such process, so that a grader that
    walks through a set does the same each time.

    Raises:
        ConfigError: the grader cannot be loaded.
    """

    def __init__(self, **setup: Any) -> None:
        their_tasks, self._tasks = os.pipe()
        self._answers, their_answers = os.pipe()
        their_lifeline, lifeline = os.pipe()
        theirs = {"tasks": their_tasks, "answers": their_answers, "lifeline": their_lifeline}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, json.dumps({"path": sys.path, **theirs, **setup})],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=list(theirs.values()),
                start_new_session=True,
                env={**os.environ, "PYTHONHASHSEED": "0"},
            )
        finally:
            for descriptor in theirs.values():
                os.close(descriptor)
        self._read = b""
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)
        self.kill = weakref.finalize(self, _end, self._process, (self._tasks, self._answers, lifeline))
        """Kill the process and all that it started; a second call does nothing."""
        self.whole = self._wait_until_ready()
        """Whether its grader takes a batch in one call."""

    def _wait_until_ready(self) -> bool:
        try:
            message = self.receive(START_LIMIT)
        except EOFError:
            message = ["refused", f"loading the grader {self.ending()}"]
        if message is None:
            message = ["refused", f"the grader did not load within {START_LIMIT:g} s"]
        if message[0] == "refused":
            self.kill()
            raise ConfigError(message[1])
        return bool(message[1])

    @property
    def alive(self) -> bool:
        """Return whether it can be handed work."""
        return self.kill.alive and self._process.poll() is None

    def send(self, task: bytes) -> None:
        """Hand over work.

        Raises:
            EOFError: the process has ended.
        """
        try:
            while task:
                task = task[os.write(self._tasks, task) :]
        except BrokenPipeError as error:
            raise EOFError from error

    def receive(self, seconds: float) -> list[Any] | None:
        """Return the next message; None where none comes within a time limit.

        Raises:
            EOFError: the process has ended, or no longer speaks as it should.
        """
        deadline = time.monotonic() + seconds
        while b"\n" not in self._read:
            left = deadline - time.monotonic()
            if not self._poll.poll(max(0.0, left) * 1000):
                return None
            more = os.read(self._answers, 2**16)
            if not more:
                raise EOFError
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError as error:
            raise EOFError from error
        if not isinstance(message, list):
            raise EOFError
        return message

    def ending(self) -> str:
        """Return in words how the process ended; kill it if it has not."""
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "closed its pipe"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended its process with exit code {code}"


def pickled(whole: bool, submissions: Any) -> bytes:
    """Return work as it is handed over: whether it is one call, and the submissions."""
    return pickle.dumps((whole, submissions), protocol=pickle.HIGHEST_PROTOCOL)


def _end(process: subprocess.Popen[bytes], descriptors: tuple[int, ...]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended; the second is what macOS says of it
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for descriptor in descriptors:
        os.close(descriptor)
