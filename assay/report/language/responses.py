"""Read some test problems with the responses of every point, as they are shown side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from assay.evidence.files import each_row, entries_of
from assay.report.language.measured import STATUSES
from assay.report.language.record import Said, Shown
from assay.report.values import text, whole

PROBLEMS = 8
"""Test problems that are shown, the first of their file, whose order the seed drew."""
CHARACTERS = 600
"""Of a prompt or a response that are shown, at most."""
LINES = 14
"""Likewise lines."""


def read_shown(place: Path, points: Sequence[str]) -> tuple[Shown, ...]:
    """Return the first test problems, each with the greedy response of every point or else its first sampled one.

    Args:
        place: the run directory.
        points: whose responses are shown.

    Raises:
        RunError: a file is missing or cannot be read.
        EvidenceError: a line is not a problem or not a response.
    """
    problems: dict[int, Any] = {}
    with entries_of("data/test.jsonl"):
        for row in each_row(place / "data" / "test.jsonl"):
            if len(problems) == PROBLEMS:
                break
            problems[whole(row["number"])] = _prompt(row["prompt"]), row["answer"]
    said: dict[int, dict[str, Said]] = {number: {} for number in problems}
    with entries_of("samples.jsonl"):
        for row in each_row(place / "samples.jsonl"):
            if row["split"] == "test" and row["point"] in points and row["problem"] in said:
                known, point = said[row["problem"]], row["point"]
                if row["sample"] is None or point not in known:
                    known[point] = _said(row)
    return tuple(
        Shown(number, clipped(prompt, end=True), None if answer is None else clipped(answer), said[number])
        for number, (prompt, answer) in problems.items()
    )


def clipped(content: str, *, end: bool = False) -> str:
    """Return the beginning, or the end, of a stranger's text: its lines are lines, other unseen characters spelled.

    Args:
        content: the text.
        end: whether its end is kept.

    Raises:
        TypeError: it is not text.
    """
    if not isinstance(content, str):
        raise TypeError(f"{content!r} is not text")
    lines = (content[-CHARACTERS:] if end else content[:CHARACTERS]).split("\n")
    part = "\n".join(lines[-LINES:] if end else lines[:LINES])
    shown = "\n".join(map(text, part.split("\n")))
    if len(part) == len(content):
        return shown
    return f"… {shown}" if end else f"{shown} …"


def _prompt(prompt: Any) -> str:
    """Return what was asked: the last turn of a chat."""
    asked: str = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    return asked


def _said(row: Any) -> Said:
    if row["status"] not in STATUSES:
        raise ValueError(f"status {row['status']!r}")
    return Said(clipped(row["text"]), row["status"], row["truncated"] is True, row["sample"] is None)
