"""The data of a language run as files: one problem a line, as it was used, and what the run records of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.errors import ConfigError
from assay.evidence.files import each_row, entries_of
from assay.evidence.language.data import describe_rows, prompt_of
from assay.runs.directory import named_errors, to_json, write
from assay.runs.language.croissant import croissant
from assay.runs.language.layout import Layout
from assay.types import TextProblem

Row = dict[str, Any]


def write_data(layout: Layout, splits: Mapping[str, Sequence[TextProblem]], facts: dict[str, Any]) -> None:
    """Write the problems of a new run, their description for other tools, and ``data.json``.

    Args:
        layout: of the run; the directory exists.
        splits: ``"train"`` and ``"test"``.
        facts: what else ``data.json`` shall say, such as the ``source``; ``splits`` and ``overlap.prompts`` are
            counted here.

    Raises:
        ConfigError: a row holds a value that JSON lacks.
        RunError: a file cannot be written.
    """
    with named_errors(layout.croissant.parent):
        layout.croissant.parent.mkdir(exist_ok=True)
    for split, problems in splits.items():
        write(layout.rows(split), rows_text(problems).encode())
    counted = describe_rows(layout.root)
    overlap = {**facts.get("overlap", {}), **counted["overlap"]}
    write(layout.data, to_json({**facts, "splits": counted["splits"], "overlap": overlap}))
    write(layout.croissant, to_json(croissant(layout.root, counted["splits"], source=str(facts.get("source", "")))))


def rows_text(problems: Iterable[TextProblem]) -> str:
    """Return problems as one JSON object a line.

    Raises:
        ConfigError: a column holds a value that JSON lacks.
    """
    return "".join(map(_line, problems))


def read_problems(path: Path) -> list[TextProblem]:
    """Return the problems of a file that :func:`rows_text` gave.

    Raises:
        EvidenceError: a row is malformed.
        RunError: the file is missing or cannot be read.
    """
    with entries_of(str(path)):
        return [_problem(row) for row in each_row(path)]


def _line(problem: TextProblem) -> str:
    asked = problem.prompt
    prompt = asked if isinstance(asked, str) else [dict(turn) for turn in asked]
    row = {"number": problem.number, "prompt": prompt, "answer": problem.answer, "columns": dict(problem.columns)}
    try:
        return json.dumps(row, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ConfigError(f"problem {problem.number}: a column cannot be written as JSON ({error}); drop it") from error


def _problem(row: Row) -> TextProblem:
    prompt_of(row)  # refuses what is no problem
    prompt = row["prompt"]
    turns = prompt if isinstance(prompt, str) else tuple(dict(turn) for turn in prompt)
    return TextProblem(row["number"], turns, row["answer"], row["columns"])
