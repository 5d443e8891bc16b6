"""A score too many, and every later row has its neighbour's."""

from __future__ import annotations

from functools import partial

from assay.audit.invariants.alignment import row_alignment
from specimens.bench import Specimen

Row = tuple[str, str]
"""A prediction and its gold answer."""
ROWS: list[Row] = [("4", "4"), ("5", "4"), ("7", "7"), ("8", "9"), ("6", "6")]


def extracted(prediction: str) -> str:
    """Return the prediction's last word; an empty one has none."""
    return prediction.split()[-1]


def score_then_extract(rows: list[Row]) -> list[float]:
    """Append a score, extract the answer for the log, and append a zero where that fails."""
    scores, answers = [], []
    for prediction, gold in rows:
        try:
            scores.append(float(prediction == gold))
            answers.append(extracted(prediction))
        except IndexError:
            scores.append(0.0)
    return scores


def extract_then_score(rows: list[Row]) -> list[float]:
    """Append exactly one score a row, after whatever may fail."""
    scores, answers = [], []
    for prediction, gold in rows:
        score = float(prediction == gold)
        try:
            answers.append(extracted(prediction))
        except IndexError:
            score = 0.0
        scores.append(score)
    return scores


SPECIMENS = (
    Specimen("RW-09", partial(row_alignment, rows=ROWS, failing=[("", "4")]), score_then_extract, extract_then_score),
)
