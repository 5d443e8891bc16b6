import itertools
import json
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.clustered import clustered_mean
from assay.core.paired import mcnemar, paired_score
from assay.errors import InputError
from assay.evaluation.answers import Answer, point_record
from assay.evaluation.compare import compare_points, verdict
from assay.types import Outcome

RIGHT, WRONG, LOST = (Answer(Outcome(s, w)) for s, w in ((1.0, "right"), (0.0, "wrong"), (None, "timeout")))


def answers(right, of):
    return [RIGHT] * right + [WRONG] * (of - right)


def sampled(counts, of=4, **options):
    return point_record(list(range(len(counts))), [answers(right, of) for right in counts], **options)


def greedy(rights):
    return point_record(
        list(range(len(rights))), [[] for _ in rights], greedy=[RIGHT if right else WRONG for right in rights]
    )


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=2, max_size=7))
def test_sampled_points_by_brute_force(counts):
    """Three samples before, five after: differences in exact fractions, every sign pattern counted."""
    made = compare_points(sampled([a for a, _ in counts], of=3), sampled([b for _, b in counts], of=5))["sampled"]
    differences = [Fraction(b, 5) - Fraction(a, 3) for a, b in counts]
    assert made["difference"] == pytest.approx(float(sum(differences) / len(counts)), abs=1e-15)
    assert made["interval"] == pytest.approx(clustered_mean([float(d) for d in differences], low=-1.0), abs=1e-15)
    patterns = list(itertools.product((-1, 1), repeat=len(counts)))
    sums = [abs(sum(sign * d for sign, d in zip(signs, differences, strict=True))) for signs in patterns]
    extreme = sum(value >= abs(sum(differences)) for value in sums)
    assert made["permutation_p"] == pytest.approx(extreme / len(patterns), rel=1e-12)


def test_greedy_points_by_hand():
    before, after = greedy([1, 1, 1, 0, 0, 0, 0, 0]), greedy([1, 1, 0, 1, 1, 1, 0, 0])
    made = compare_points(before, after)
    assert made["greedy"] == {
        "b": 1,
        "c": 3,
        "mcnemar_p": mcnemar(3, 1),
        "difference": 0.25,
        "interval": list(paired_score(3, 1, 8)),
    }
    assert made["sampled"] is None
    assert (made["basis"], made["difference"], made["interval"]) == ("greedy", 0.25, made["greedy"]["interval"])
    assert not made["excludes_zero"]
    assert made["words"].startswith("inside noise: +0.25 (")


def test_the_sampled_difference_leads_where_both_have_one():
    both = point_record([0, 1], [answers(4, 4), answers(2, 4)], greedy=[RIGHT, RIGHT])
    none = point_record([0, 1], [answers(0, 4), answers(0, 4)], greedy=[RIGHT, WRONG])
    made = compare_points(none, both)
    assert (made["basis"], made["difference"], made["greedy"]["difference"]) == ("sampled", 0.75, 0.5)
    assert made["interval"] == made["sampled"]["interval"]


def test_one_sample_a_problem_gets_the_paired_score_interval():
    made = compare_points(sampled([0, 0, 1, 0, 1], of=1), sampled([1, 0, 0, 1, 1], of=1))["sampled"]
    assert made["interval"] == list(paired_score(2, 1, 5))
    assert made["interval_kind"] == "paired score"


def test_a_clear_gain_and_its_reverse():
    low, high = sampled([0, 1] * 20), sampled([4, 3] * 20)
    up, down = compare_points(low, high), compare_points(high, low)
    assert up["excludes_zero"] and down["excludes_zero"]
    assert up["words"].startswith("higher: +0.75 (0.")
    assert down["words"].startswith("lower: \N{MINUS SIGN}0.75 (\N{MINUS SIGN}0.")
    assert down["interval"] == pytest.approx([-end for end in reversed(up["interval"])])
    assert up["sampled"]["permutation_p"] < 1e-11


def test_a_point_against_itself_is_inside_noise_with_room_to_spare():
    made = compare_points(sampled([2] * 30), sampled([2] * 30))
    assert made["words"].startswith("inside noise: 0.00 (")
    assert made["interval"][0] < 0 < made["interval"][1]
    assert made["sampled"]["permutation_p"] == 1.0


def test_problems_are_matched_by_number_and_not_by_place():
    rows = [answers(right % 3, 2) for right in range(30)]
    before = point_record(list(range(30)), rows)
    after = point_record(list(reversed(range(30))), rows[::-1])
    made = compare_points(before, after)["sampled"]
    assert made["difference"] == 0.0
    assert made["interval"] == pytest.approx(clustered_mean([0.0] * 30, low=-1.0))


def test_records_read_back_from_json_compare_the_same():
    before, after = sampled([0, 1, 2, 3]), sampled([1, 2, 2, 4])
    made = compare_points(before, after)
    assert compare_points(*(json.loads(json.dumps(point)) for point in (before, after))) == made
    assert json.loads(json.dumps(made, allow_nan=False)) == made


@pytest.mark.parametrize("p", [0.05, 0.5])
def test_no_change_is_seldom_called_one(p):
    """Two samples a problem before and after at one probability: every outcome of six problems, with its chance."""
    chances = {}
    for a, b in itertools.product(range(3), repeat=2):
        chance = math.comb(2, a) * math.comb(2, b) * p ** (a + b) * (1 - p) ** (4 - a - b)
        chances[b - a] = chances.get(b - a, 0.0) + chance
    false_alarms = total = 0.0
    for steps in itertools.combinations_with_replacement(sorted(chances), 6):
        ways = math.factorial(6) // math.prod(math.factorial(steps.count(step)) for step in chances)
        chance = ways * math.prod(chances[step] for step in steps)
        before, after = [max(0, -step) for step in steps], [max(0, step) for step in steps]
        made = compare_points(sampled(before, of=2), sampled(after, of=2))
        total += chance
        false_alarms += chance * made["excludes_zero"]
        assert made["excludes_zero"] <= (made["sampled"]["permutation_p"] <= 0.05)
    assert total == pytest.approx(1)
    assert false_alarms <= 0.05


def test_an_unscorable_answer_is_not_right():
    before = point_record([0, 1], [[RIGHT, RIGHT], [RIGHT, RIGHT]])
    after = point_record([0, 1], [[RIGHT, LOST], [LOST, LOST]])
    assert compare_points(before, after)["difference"] == -0.75


def test_other_problems_levels_or_kinds_are_refused():
    with pytest.raises(InputError, match=r"problem 3 is in one point and not in the other \(3 and 4 problems\)"):
        compare_points(sampled([1, 1, 1]), sampled([1, 1, 1, 1]))
    with pytest.raises(InputError, match="levels 0.95 and 0.9"):
        compare_points(sampled([1, 1]), sampled([1, 1], level=0.9))
    with pytest.raises(InputError, match="only greedy and the other only sampled"):
        compare_points(sampled([1, 1]), greedy([1, 1]))


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((0.312, 0.2249, 0.4), "higher: +0.31 (0.22 to 0.40)"),
        ((-0.001, -0.03, 0.028), "inside noise: 0.00 (\N{MINUS SIGN}0.03 to 0.03)"),
        ((-0.5, -0.8, -0.2), "lower: \N{MINUS SIGN}0.50 (\N{MINUS SIGN}0.80 to \N{MINUS SIGN}0.20)"),
        ((0.2, 0.0, 0.4), "inside noise: +0.20 (0.00 to 0.40)"),
    ],
)
def test_the_sentence(numbers, words):
    assert verdict(*numbers) == words
