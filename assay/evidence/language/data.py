"""The data of a language run: the rows that were used are those whose digests and counts were recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from assay.evidence.digest import file_digest
from assay.evidence.files import each_row, entries_of, read_json
from assay.evidence.language.contents import SPLITS

Row = dict[str, Any]


def describe_rows(place: Path) -> dict[str, Any]:
    """Return the entries ``splits`` and ``overlap`` of ``data.json``, counted from the files of a run.

    Returns:
        ``splits``: for each split its ``file``, ``rows``, ``sha256`` and ``duplicates``, the rows whose prompt an
        earlier row of the split has; ``overlap``: ``prompts``, the test rows whose prompt a training row has too.

    Raises:
        EvidenceError: a row is malformed.
        RunError: a file cannot be read.
    """
    splits, prompts = {}, {}
    for split in SPLITS:
        path = place / "data" / f"{split}.jsonl"
        with entries_of(str(path)):
            rows = [prompt_of(row) for row in each_row(path)]
        prompts[split] = rows
        splits[split] = {
            "file": f"data/{split}.jsonl",
            "rows": len(rows),
            "sha256": file_digest(path),
            "duplicates": len(rows) - len(set(rows)),
        }
    trained = set(prompts["train"])
    return {"splits": splits, "overlap": {"prompts": sum(prompt in trained for prompt in prompts["test"])}}


@entries_of("data.json")
def check_data(place: Path) -> list[str]:
    """Return where ``data.json`` does not describe the rows beside it, and what is wrong with the rows."""
    recorded, found = read_json(place / "data.json"), describe_rows(place)
    findings = []
    for split in SPLITS:
        for name, value in found["splits"][split].items():
            if (said := recorded["splits"][split][name]) != value:
                findings.append(f"data.json: {split} {name} is {said!r}, the rows have {value!r}")
    if recorded["overlap"]["prompts"] != found["overlap"]["prompts"]:
        said, counted = recorded["overlap"]["prompts"], found["overlap"]["prompts"]
        findings.append(f"data.json: overlap of prompts is {said}, counted {counted}")
    for split in SPLITS:
        numbers = [row["number"] for row in each_row(place / "data" / f"{split}.jsonl")]
        if not all(type(number) is int and number >= 0 for number in numbers) or len(set(numbers)) < len(numbers):
            findings.append(f"data/{split}.jsonl: its numbers are not distinct counts")
    return findings + _check_description(place, found["splits"])


def prompt_of(row: Row) -> str:
    """Return a row's prompt as one text that is equal for equal prompts.

    Raises:
        TypeError, LookupError: it is neither text nor the turns of a chat, or the answer is neither text nor null.
    """
    prompt = row["prompt"]
    turns = [] if isinstance(prompt, str) else [(turn["role"], turn["content"]) for turn in prompt]
    if not all(isinstance(part, str) for turn in turns for part in turn) or not isinstance(row["columns"], dict):
        raise TypeError(f"row {row['number']!r} is not a problem")
    if not isinstance(row["answer"], str | None):
        raise TypeError(f"row {row['number']!r} has an answer that is neither text nor null")
    return json.dumps(prompt if isinstance(prompt, str) else turns)


@entries_of("data/croissant.json")
def _check_description(place: Path, splits: dict[str, Any]) -> list[str]:
    description = read_json(place / "data" / "croissant.json")
    named = {file["contentUrl"]: file["sha256"] for file in description["distribution"]}
    expected = {Path(split["file"]).name: split["sha256"] for split in splits.values()}
    return [] if named == expected else ["data/croissant.json: does not describe the files beside it"]
