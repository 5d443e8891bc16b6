"""Graders in a process that can be killed: no response can stall, starve or end a training run.

A timer inside the trainer's process would not do: code in C does not see it, and a grader that sets the same alarm
cancels it. A response that hangs is a timeout; one that takes too much memory, raises, or ends the process is an
error; neither has a score. The other responses of the batch keep theirs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, cast

from assay.errors import ConfigError, InputError
from assay.tasks.named import name_of
from assay.tasks.process import GradingProcess, pickled
from assay.tasks.rewards import Convention
from assay.tasks.submission import Submission
from assay.types import Outcome, Response, Status, TextProblem

MOST_NOTES = 20
TIMEOUT, ERROR = Outcome(None, "timeout"), Outcome(None, "error")


class WorkerGrader:
    """Grades in a process of its own, within a time limit a response and a memory limit.

    A function that scores a whole batch (TRL's) is called once a batch, within the time of all its rows together; where
    that call fails, each response is given to it alone, and ``notes`` says so.

    Attributes:
        counts: ``graded`` responses; ``timeout`` and ``error`` among them; ``restarts`` of the process; ``fallbacks``
            of a batch to single responses.
        notes: in words, what made the first of the responses that have no score fail.

    Args:
        reward: ``"exact"``, ``"maths"``, ``"gym"``, ``"package.module:function"``, or a function of a module.
        timeout: seconds a response.
        memory: MiB that the grader may take beyond what it has once it is loaded.
        convention: how a function is called; see :func:`assay.tasks.rewards.wrap_reward`.

    Raises:
        ConfigError: a limit is out of range, or the grader cannot be loaded.
    """

    def __init__(
        self,
        reward: str | Callable[..., Any],
        *,
        timeout: float | int = 5.0,
        memory: int = 2048,
        convention: Convention = "auto",
    ) -> None:
        for name, value in (("timeout", timeout), ("memory", memory)):
            if not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"grading.{name} = {value}: must be above 0")
        self.reward = reward if isinstance(reward, str) else name_of(reward, "reward")
        self.counts: Counter[str] = Counter(graded=0, timeout=0, error=0, restarts=0, fallbacks=0)
        self.notes: list[str] = []
        self._timeout = timeout
        self._setup = {"reward": self.reward, "convention": convention, "memory": memory}
        self._busy = self._closed = False
        self._process = GradingProcess(**self._setup)

    def __call__(self, problems: Sequence[TextProblem], responses: Sequence[Response], /) -> list[Outcome]:
        """Return the outcome of each response to the problem in the same row.

        Raises:
            InputError: there are not as many problems as responses, a row cannot be handed to another process, or the
                reward function returns what is no reward.
        """
        if len(problems) != len(responses):
            raise InputError(f"{len(problems)} problems for {len(responses)} responses; need one a response")
        if self._closed:
            raise InputError("the grader is closed; make another one")
        rows = [_submission(problem, response) for problem, response in zip(problems, responses, strict=True)]
        if self._busy:  # the last call was left before its end, and answers to it may still come
            self._restart()
        self._busy = True
        outcomes = self._batch(rows) if self._process.whole and len(rows) > 1 else None
        if outcomes is None:
            outcomes = []
            while len(outcomes) < len(rows):
                outcomes += self._rows_until_one_kills(rows[len(outcomes) :], problems[len(outcomes) :])
        self._busy = False
        self.counts["graded"] += len(rows)
        self.counts.update(outcome.status for outcome in outcomes if outcome.status in ("timeout", "error"))
        return outcomes

    def close(self) -> None:
        """End the process; the grader cannot be used any more."""
        self._closed = True
        self._process.kill()

    def __enter__(self) -> WorkerGrader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _batch(self, rows: list[Submission]) -> list[Outcome] | None:
        """Return the outcomes of one call for all rows; None where it fails."""
        kind, *said = self._ask(rows, whole=True)
        if kind == "marks":
            return [_outcome(*mark) for mark in said[0]]
        if kind == "invalid":
            raise InputError(f"reward {self.reward}: {_place(said[1])}{said[0]}")
        self.counts["fallbacks"] += 1
        self._note(f"a batch of {len(rows)} was graded one by one, since the call for all of it failed: {said[0]}")
        return None

    def _rows_until_one_kills(self, rows: list[Submission], problems: Sequence[TextProblem]) -> list[Outcome]:
        """Return the outcomes of rows graded one by one: of all, or up to the one that the process did not survive."""
        outcomes: list[Outcome] = []
        message = self._ask(rows, whole=False)
        while True:
            kind, *said = message
            place = f"problem {problems[len(outcomes)].number}"
            if kind == "invalid":
                raise InputError(f"reward {self.reward}: {place}: {said[0]}")
            if kind == "marks":
                outcomes.append(_outcome(*said[0][0]))
            else:
                outcomes.append(TIMEOUT if kind == "hung" else ERROR)
                self._note(f"{place}: {said[0]}")
            if kind in ("hung", "died", "spent") or len(outcomes) == len(rows):
                return outcomes
            message = self._next(self._timeout)

    def _ask(self, rows: list[Submission], *, whole: bool) -> list[Any]:
        """Hand rows to a living process and return its first message."""
        try:
            task = pickled(whole, rows)
        except Exception as error:  # pickling runs code of the objects in the rows
            raise InputError(f"the columns of a row cannot be handed to the grading process: {error}") from error
        if not self._process.alive:
            self._restart()
        try:
            self._process.send(task)
        except EOFError:
            return self._died()
        return self._next(self._timeout * (len(rows) if whole else 1))

    def _next(self, seconds: float) -> list[Any]:
        """Return the next message; where none comes, one that says why, with a new process in the old one's place."""
        try:
            message = self._process.receive(seconds)
        except EOFError:
            return self._died()
        if message is None:
            self._restart()
            return ["hung", f"no answer within {seconds:g} s"]
        if message[0] == "spent":
            self._restart()
        return message

    def _died(self) -> list[Any]:
        why = self._process.ending()
        self._restart()
        return ["died", f"it {why}"]

    def _restart(self) -> None:
        self._process.kill()
        self.counts["restarts"] += 1
        self._process = GradingProcess(**self._setup)

    def _note(self, words: str) -> None:
        if len(self.notes) < MOST_NOTES:
            self.notes.append(words)


def _submission(problem: TextProblem, response: Response) -> Submission:
    prompt = problem.prompt if isinstance(problem.prompt, str) else [dict(message) for message in problem.prompt]
    return Submission(prompt, problem.answer, dict(problem.columns), response.text, response.tokens)


def _outcome(score: float | None, status: str) -> Outcome:
    return Outcome(score, cast(Status, status))


def _place(row: int | None) -> str:
    return "" if row is None else f"row {row}: "
