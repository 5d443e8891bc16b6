"""I14 on scoring functions that keep their rows, and on those that lose, add or exchange some."""

import math

import numpy as np
import pytest
import torch

from assay.audit.invariants.alignment import row_alignment
from assay.types import Outcome
from assay.verdicts import Verdict

ROWS = ["4", "15", "8", "23"]


def one(row):
    return 0.0 if row == "" else float(row) / 10


def in_turn(rows):
    return [one(row) for row in rows]


def as_tensor(rows):
    return torch.tensor(in_turn(rows))


def as_outcomes(rows):
    return [Outcome(one(row), "right") if row else Outcome(None, "unparseable") for row in rows]


def not_a_number(rows):
    return [one(row) if row else math.nan for row in rows]


def as_array(rows):
    return np.array(in_turn(rows))


@pytest.mark.parametrize("score", [in_turn, as_tensor, as_array, as_outcomes, not_a_number])
def test_rows_that_keep_their_scores_hold(score):
    found = row_alignment(score, ROWS)
    assert found.verdict is Verdict.HOLDS, found
    # the failing row alone, three orders, and the failing row once and twice in each of 5 places
    assert "14 batches" in found.exactness


def drops(rows):
    return [one(row) for row in rows if row]


def twice(rows):
    return [score for row in rows for score in ([one(row)] if row else [0.0, 0.0])]


def to_the_end(rows):
    return in_turn(sorted(rows, key=lambda row: row == ""))


def sorts(rows):
    return sorted(in_turn(rows))


def raises_in_a_batch(rows):
    if len(rows) > 1 and "" in rows:
        raise ValueError("cannot score ''")
    return in_turn(rows)


@pytest.mark.parametrize(
    ("score", "witness"),
    [
        (drops, "['']: scores 0, rows 1"),
        (twice, "['', '4', '15', '8', '23']: row 1 scores 0.0, and 0.4 alone; 6 scores in all"),
        (to_the_end, "['', '4', '15', '8', '23']: row 1 scores 1.5, and 0.4 alone; 5 scores in all"),
        (sorts, "['4', '15', '8', '23']: row 1 scores 0.8, and 1.5 alone; 4 scores in all"),
        (raises_in_a_batch, "no row has a score, the scoring function raised ValueError: cannot score ''"),
    ],
)
def test_a_lost_added_or_exchanged_row_is_shown(score, witness):
    found = row_alignment(score, ROWS)
    assert found.verdict is Verdict.DISAGREES
    assert any(witness in line for line in found.findings), found.findings


def matches(pairs):
    return [float(said == gold) for said, gold in pairs]


PAIRS = [("4", "4"), ("5", "4"), ("7", "7")]


def test_rows_that_are_no_texts_have_no_failing_row_unless_it_is_given():
    found = row_alignment(matches, PAIRS)
    assert found.verdict is Verdict.HOLDS and "no row that cannot be scored was given" in found.detail, found
    assert "3 batches" in found.exactness
    assert row_alignment(lambda pairs: matches(sorted(pairs)), PAIRS).verdict is Verdict.DISAGREES, "an order is seen"
    with_one = row_alignment(matches, PAIRS, failing=[("", "4")])
    assert with_one.verdict is Verdict.HOLDS and "also when one of them cannot be scored" in with_one.detail
    dropped = row_alignment(lambda pairs: matches([p for p in pairs if p[0]]), PAIRS, failing=[("", "4")])
    assert dropped.verdict is Verdict.DISAGREES


def test_scores_that_depend_on_the_batch_a_little_need_a_tolerance():
    def of_a_model(rows):
        return [one(row) + 1e-7 * len(rows) for row in rows]

    assert row_alignment(of_a_model, ROWS).verdict is Verdict.DISAGREES
    assert row_alignment(of_a_model, ROWS, tolerance=1e-5).verdict is Verdict.HOLDS


def test_what_cannot_be_audited_says_why():
    for score, rows, reason in [
        (in_turn, ["4", "4"], "all rows score the same"),
        (in_turn, [], "all rows score the same"),
        (lambda rows: 1.0, ROWS, "returned float"),
        (lambda rows: [0.0, 1.0], ROWS, "returned 2 scores for one ordinary row"),
        (lambda rows: 1 / 0, ROWS, "ZeroDivisionError"),
        (lambda rows: ["high"], ROWS, "it returned str"),
        (lambda rows: np.float64(1.0), ROWS, "returned float64"),
        (lambda rows: np.ones((len(rows), 2)), ROWS, "it returned list"),
        (lambda rows: torch.zeros(len(rows), device="meta"), ROWS, "reading what the scoring function returned raised"),
    ]:
        found = row_alignment(score, rows)
        assert found.verdict is Verdict.COULD_NOT_RUN and reason in found.detail
