"""The two lists: public reports of wrong updates, and reports that were no bugs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

BUGS = Path(__file__).with_name("bugs.jsonl")
NONBUGS = Path(__file__).with_name("nonbugs.jsonl")


@dataclass(frozen=True)
class Bug:
    """A line of the list: one report.

    Attributes:
        id: its identifier.
        repo: owner and name of the repository.
        number: of the issue or pull request.
        title: as it was reported.
        kind: what went wrong, in the list's own classes.
        invariant: the one it breaks.
        exact_decidable: whether wrong and right can be told apart on a small case.
        url: of the thread.
    """

    id: str
    repo: str
    number: int
    title: str
    kind: str
    invariant: str
    exact_decidable: bool
    url: str


@dataclass(frozen=True)
class Dismissed:
    """A line of the other list: reports that were no bugs, all of one kind.

    Attributes:
        report: repository and number of the first.
        also: of the others.
        why: what makes it none.
    """

    report: str
    also: tuple[str, ...]
    why: str


def read_list(path: Path = BUGS) -> dict[str, Bug]:
    """Return every report by its identifier."""
    bugs = [Bug(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return {bug.id: bug for bug in bugs}


def read_dismissed(path: Path = NONBUGS) -> dict[str, Dismissed]:
    """Return the reports that were no bugs, line by line, by the first of each."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    made = [Dismissed(line["report"], tuple(line["also"]), line["why"]) for line in lines]
    return {entry.report: entry for entry in made}
