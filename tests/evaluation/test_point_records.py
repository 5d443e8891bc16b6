import json

import pytest

from assay.core.attempts import estimate_pass_at_k
from assay.core.clustered import clustered_mean
from assay.core.intervals import exact_binomial, wilson
from assay.errors import InputError
from assay.evaluation.answers import Answer, point_record
from assay.types import Outcome

RIGHT, WRONG = Answer(Outcome(1.0, "right")), Answer(Outcome(0.0, "wrong"))
UNPARSEABLE, TIMEOUT, ERROR = (Answer(Outcome(None, status)) for status in ("unparseable", "timeout", "error"))
CUT = Answer(Outcome(0.0, "wrong"), truncated=True)

SAMPLED = [[RIGHT, RIGHT, WRONG, CUT], [UNPARSEABLE, TIMEOUT, WRONG, RIGHT], [ERROR, WRONG, WRONG, WRONG]]
GREEDY = [RIGHT, UNPARSEABLE, CUT]


def test_counts_rates_and_intervals_of_a_point_worked_by_hand():
    made = point_record([7, 3, 5], SAMPLED, greedy=GREEDY, pass_k=(1, 2))
    sampled, greedy = made["sampled"], made["greedy"]
    assert sampled["samples"] == 12
    assert sampled["rate"] == pytest.approx((2 / 4 + 1 / 4 + 0 / 4) / 3)
    assert sampled["interval"] == list(clustered_mean([0.5, 0.25, 0.0]))
    assert sampled["interval_kind"] == "clustered by problem"
    assert sampled["rate_if_unscorable_right"] == pytest.approx((2 / 4 + 3 / 4 + 1 / 4) / 3)
    assert sampled["outcomes"] == {"right": 3, "wrong": 6, "unparseable": 1, "timeout": 1, "error": 1}
    assert sampled["unscorable_share"] == 3 / 12
    assert sampled["in_format_share"] == 9 / 12
    assert sampled["truncated_share"] == 1 / 12
    twos = [estimate_pass_at_k(right, 4, 2) for right in (2, 1, 0)]
    assert sampled["pass_at_k"]["2"] == {"rate": pytest.approx(sum(twos) / 3), "interval": list(clustered_mean(twos))}
    assert sampled["pass_at_k"]["1"]["rate"] == pytest.approx(sampled["rate"])
    assert (greedy["right"], greedy["of"], greedy["rate"]) == (1, 3, 1 / 3)
    assert (greedy["wilson"], greedy["exact"]) == (list(wilson(1, 3)), list(exact_binomial(1, 3)))
    assert greedy["rate_if_unscorable_right"] == 2 / 3
    assert greedy["truncated_share"] == 1 / 3
    assert made["per_problem"][1] == {
        "problem": 3,
        "sampled": {"of": 4, "right": 1, "in_format": 2, "unscorable": 2, "rate": 0.25},
        "greedy": {"of": 1, "right": 0, "in_format": 0, "unscorable": 1, "rate": 0.0},
    }


def test_the_record_is_plain_json():
    made = point_record([7, 3, 5], SAMPLED, greedy=GREEDY, pass_k=(1, 4))
    assert json.loads(json.dumps(made, allow_nan=False)) == made


def test_the_order_of_problems_does_not_matter():
    one = point_record([7, 3, 5], SAMPLED, greedy=GREEDY)
    two = point_record([5, 7, 3], [SAMPLED[2], SAMPLED[0], SAMPLED[1]], greedy=[GREEDY[2], GREEDY[0], GREEDY[1]])
    assert (one["sampled"], one["greedy"]) == (two["sampled"], two["greedy"])


def test_copies_of_the_same_samples_do_not_narrow_the_interval():
    """What is not independent adds nothing: the clusters are the problems."""
    once = point_record([7, 3, 5], SAMPLED)["sampled"]
    tenfold = point_record([7, 3, 5], [10 * answers for answers in SAMPLED])["sampled"]
    assert tenfold["interval"] == pytest.approx(once["interval"])


def test_one_sample_a_problem_gets_wilsons_interval():
    made = point_record(list(range(9)), [[RIGHT]] * 4 + [[WRONG]] * 5)["sampled"]
    assert made["interval"] == list(wilson(4, 9))
    assert made["interval_kind"] == "wilson"


def test_problems_weigh_equally_whatever_their_samples():
    assert point_record([0, 1], [[RIGHT], [WRONG] * 9])["sampled"]["rate"] == 0.5


def test_a_point_may_have_only_greedy_or_only_sampled_answers():
    assert point_record([0, 1], [[], []], greedy=[RIGHT, WRONG])["sampled"] is None
    assert point_record([0], [[RIGHT]])["greedy"] is None


def test_the_level_reaches_every_interval():
    wide, narrow = (
        point_record([7, 3, 5], SAMPLED, greedy=[RIGHT, WRONG, WRONG], level=level) for level in (0.99, 0.5)
    )
    for a, b in [
        (wide["greedy"]["wilson"], narrow["greedy"]["wilson"]),
        (wide["greedy"]["exact"], narrow["greedy"]["exact"]),
        (wide["sampled"]["interval"], narrow["sampled"]["interval"]),
        (wide["sampled"]["pass_at_k"]["1"]["interval"], narrow["sampled"]["pass_at_k"]["1"]["interval"]),
    ]:
        assert a[0] <= b[0] and b[1] < a[1]


def test_a_callers_own_reading_of_the_format_counts_and_must_not_contradict_the_grader():
    read = Answer(Outcome(0.0, "wrong"), parsed=False)
    assert point_record([0], [[read, WRONG]])["sampled"]["in_format_share"] == 0.5
    with pytest.raises(InputError, match="right and parsed = False"):
        Answer(Outcome(1.0, "right"), parsed=False)


@pytest.mark.parametrize(
    ("numbers", "sampled", "greedy", "message"),
    [
        ([1, 1], [[RIGHT], [RIGHT]], None, "problem 1 comes twice"),
        ([1, 2], [[RIGHT]], None, "1 rows of sampled answers to 2 problems"),
        ([1, 2], [[RIGHT], [RIGHT]], [RIGHT], "1 rows of greedy answers to 2 problems"),
        ([1, 2], [[RIGHT], []], None, "problem 2 has no sampled answer"),
        ([1, 2], [[], []], None, "no answer to count"),
        ([], [], [], "0 problems"),
    ],
)
def test_rows_that_do_not_fit_are_refused(numbers, sampled, greedy, message):
    with pytest.raises(InputError, match=message):
        point_record(numbers, sampled, greedy=greedy)


def test_pass_at_more_than_the_fewest_samples_is_refused():
    with pytest.raises(InputError, match="pass@2 from 1 samples"):
        point_record([0, 1], [[RIGHT, RIGHT], [RIGHT]], pass_k=(2,))
