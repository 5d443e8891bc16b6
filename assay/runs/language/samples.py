"""``samples.jsonl``: every evaluated response with its outcome. What a model wrote is stored and never interpreted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from assay.errors import EvidenceError
from assay.evidence.files import each_row
from assay.evidence.language.samples import check_row
from assay.runs.directory import Journal
from assay.types import Status


@dataclass(frozen=True)
class Sample:
    """One evaluated response.

    Attributes:
        point: of the run: ``"base"``, ``"warmup"``, ``"rl"``, or the name of a control.
        split: ``"train"`` or ``"test"``.
        problem: its number in the data.
        sample: its number among the problem's responses, from 0; None where it was decoded greedily.
        text: what the model wrote, decoded.
        status: what the grader said.
        score: the reward, None where the response could not be scored.
        truncated: whether it was cut off at the longest length.
        in_format: whether an answer could be read from it.
    """

    point: str
    split: str
    problem: int
    sample: int | None
    text: str
    status: Status
    score: float | int | None
    truncated: bool
    in_format: bool


def append_sample(journal: Journal, sample: Sample) -> None:
    """Append a response to an open ``samples.jsonl``.

    Raises:
        ValueError: the score is not a finite number.
        RunError: the file cannot be written.
    """
    journal.append({**asdict(sample), "text": valid_text(sample.text)})


def read_samples(path: Path) -> Iterator[Sample]:
    """Yield the responses of a ``samples.jsonl``, in order, one in memory at a time.

    Raises:
        EvidenceError: a line is not such a record.
        RunError: the file is missing or cannot be read.
    """
    for line, row in enumerate(each_row(path), 1):
        if wrong := check_row(row):
            raise EvidenceError(f"{path}: line {line}: {wrong}")
        yield Sample(**row)


def valid_text(text: str) -> str:
    """Return text that UTF-8 can hold: halves of a character that belong together are joined, others become U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
