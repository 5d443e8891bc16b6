"""What passes between a trainer and the process that grades for it: plain values.

Nothing here, or in what the process imports to grade, loads torch: a process that was killed is replaced in a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Submission(NamedTuple):
    """One response, with what it answers.

    Attributes:
        prompt: plain text, or the turns of a chat.
        answer: the right answer; None where there is none.
        columns: everything else of the problem's row.
        text: of the response.
        tokens: of the response.
    """

    prompt: str | list[dict[str, str]]
    answer: str | None
    columns: dict[str, Any]
    text: str
    tokens: tuple[int, ...]


Mark = tuple[float | None, str]
"""A score, or None, and a status: what an Outcome holds."""

RIGHT: Mark = (1.0, "right")
WRONG: Mark = (0.0, "wrong")
NO_ANSWER: Mark = (0.0, "unparseable")
"""The response says no answer: it scores 0, and is counted apart from wrong ones."""


@dataclass(frozen=True)
class Scorer:
    """A grader as the grading process calls it.

    Attributes:
        score: returns one mark a submission.
        whole: whether it wants a batch in one call, and not one submission at a time.
    """

    score: Callable[[Sequence[Submission]], list[Mark]]
    whole: bool = False


def row_by_row(grade: Callable[[Submission], Mark]) -> Scorer:
    """Return the scorer that grades each submission by itself."""
    return Scorer(lambda submissions: [grade(submission) for submission in submissions])
