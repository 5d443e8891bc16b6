import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.clustered import clustered_mean
from assay.errors import InputError
from assay.evaluation.answers import Answer, point_record
from assay.evaluation.compare import compare_points
from assay.evaluation.format_share import format_share
from assay.types import Outcome

RIGHT, WRONG = Answer(Outcome(1.0, "right")), Answer(Outcome(0.0, "wrong"))
UNPARSEABLE = Answer(Outcome(None, "unparseable"))
OF = 6


def point(counts):
    """A point from (right, wrong) of each problem; the rest of its responses cannot be parsed."""
    rows = [[RIGHT] * right + [WRONG] * wrong + [UNPARSEABLE] * (OF - right - wrong) for right, wrong in counts]
    return point_record(list(range(len(counts))), rows)


COUNTS = st.integers(0, OF).flatmap(lambda right: st.tuples(st.just(right), st.integers(0, OF - right)))
PAIRS = st.lists(st.tuples(COUNTS, COUNTS), min_size=2, max_size=8)


def split(pairs):
    return format_share(point([a for a, _ in pairs]), point([b for _, b in pairs]))


def factors(counts):
    total = OF * len(counts)
    parsed, right = sum(map(sum, counts)), sum(right for right, _ in counts)
    return parsed / total, right / parsed if parsed else None


@given(PAIRS)
def test_it_is_the_average_over_both_orders_of_moving_one_factor_at_a_time(pairs):
    made = split(pairs)
    (f0, a0), (f1, a1) = factors([a for a, _ in pairs]), factors([b for _, b in pairs])
    assert made["gain"] == pytest.approx(f1 * (a1 or 0) - f0 * (a0 or 0), abs=1e-14)
    if a0 is None or a1 is None:
        return
    parts = {"format": 0.0, "accuracy": 0.0}
    for order in itertools.permutations(parts):
        at = {"format": f0, "accuracy": a0}
        for moved in order:
            old = at["format"] * at["accuracy"]
            at[moved] = {"format": f1, "accuracy": a1}[moved]
            parts[moved] += (at["format"] * at["accuracy"] - old) / 2
    assert {name: made[name]["part"] for name in parts} == pytest.approx(parts, abs=1e-14)
    assert made["in_format"] == pytest.approx({"before": f0, "after": f1})
    assert made["accuracy_in_format"] == pytest.approx({"before": a0, "after": a1})


@given(PAIRS)
def test_the_parts_add_up_and_the_record_is_plain_json(pairs):
    made = split(pairs)
    assert made["format"]["part"] + made["accuracy"]["part"] == pytest.approx(made["gain"], abs=1e-14)
    for part in (made["format"], made["accuracy"], {"part": made["gain"], "interval": made["interval"]}):
        low, high = part["interval"]
        assert -1 <= low <= part["part"] + 1e-12 and part["part"] - 1e-12 <= high <= 1
        assert high - low > 0.1
    assert json.loads(json.dumps(made, allow_nan=False)) == made


@given(PAIRS)
def test_reversing_the_points_reverses_the_parts(pairs):
    forth, back = split(pairs), split([(b, a) for a, b in pairs])
    for name in ("format", "accuracy"):
        assert back[name]["part"] == pytest.approx(-forth[name]["part"], abs=1e-14)


def test_a_gain_of_format_alone_and_one_of_accuracy_alone():
    half = point([(1, 2)] * 20)
    formatted = format_share(half, point([(2, 4)] * 20))
    assert formatted["format"]["part"] == pytest.approx(1 / 6)
    assert formatted["accuracy"]["part"] == pytest.approx(0, abs=1e-15)
    better = format_share(half, point([(3, 0)] * 20))
    assert better["format"]["part"] == pytest.approx(0, abs=1e-15)
    assert better["accuracy"]["part"] == pytest.approx(1 / 3)
    assert better["accuracy"]["interval"][0] > 0


def test_nothing_in_format_at_first_makes_the_whole_gain_format_and_allows_for_every_accuracy():
    made = format_share(point([(0, 0)] * 60), point([(3, 2)] * 60))
    assert made["format"]["part"] == made["gain"] == pytest.approx(0.5)
    assert made["accuracy"]["part"] == 0.0
    low, high = made["format"]["interval"]
    assert low <= (5 / 6) * (0 + 0.6) / 2 and (5 / 6) * (1 + 0.6) / 2 <= high
    assert high - low < 0.9
    assert made["accuracy_in_format"] == {"before": None, "after": pytest.approx(0.6)}
    assert made["words"].startswith("of the gain +0.50, +0.50 is format (0.")
    assert made["words"].endswith("one point had nothing in format, and is taken to have the other's accuracy")


@pytest.mark.parametrize("only", [(0, 1), (1, 0)])
def test_one_response_in_format_says_hardly_more_than_none(only):
    """Its accuracy is then 0 or 1, with any truth behind it: the ends are near what those two would give."""
    made = format_share(point([(0, 0)] * 99 + [only]), point([(3, 2)] * 100))
    low, high = made["format"]["interval"]
    assert low == pytest.approx((5 / 6) * (0 + 0.6) / 2, abs=0.08)
    assert high == pytest.approx((5 / 6) * (1 + 0.6) / 2, abs=0.08)
    low, high = made["accuracy"]["interval"]
    assert low == pytest.approx((5 / 6) * (0.6 - 1) / 2, abs=0.08)
    assert high == pytest.approx((5 / 6) * (0.6 - 0) / 2, abs=0.08)


def test_nothing_in_format_at_either_point():
    made = format_share(point([(0, 0)] * 3), point([(0, 0)] * 3))
    assert (made["gain"], made["format"]["part"], made["accuracy"]["part"]) == (0.0, 0.0, 0.0)
    assert made["format"]["interval"][0] < 0 < made["format"]["interval"][1]


def test_the_sentence_names_both_parts():
    made = format_share(point([(1, 2)] * 20), point([(4, 1)] * 20))
    f0, a0, f1, a1 = 1 / 2, 1 / 3, 5 / 6, 4 / 5
    formats, accuracy = (f1 - f0) * (a0 + a1) / 2, (a1 - a0) * (f0 + f1) / 2
    assert made["words"].startswith(f"of the gain +0.50, +{formats:.2f} is format (")
    assert f"), +{accuracy:.2f} accuracy (" in made["words"]


def test_the_intervals_are_those_of_the_parts_expanded_in_each_problems_shares():
    """Slopes by central differences; a problem can add what its four shares allow, right ones being in format."""
    rng = np.random.default_rng(3)
    parsed = rng.integers(2, OF + 1, (2, 50))
    right = rng.integers(0, parsed + 1)
    made = format_share(
        *(point(list(zip(r.tolist(), (f - r).tolist(), strict=True))) for f, r in zip(parsed, right, strict=True))
    )

    def format_part(f0, f1, s0, s1):
        return (f1 - f0) * (s0 / f0 + s1 / f1) / 2

    shares = np.concatenate([parsed, right]) / OF
    for name, part in [("format", format_part), ("accuracy", lambda *x: x[3] - x[2] - format_part(*x))]:
        steps = 1e-6 * np.eye(4)
        mean = shares.mean(1)
        slopes = np.array([(part(*(mean + step)) - part(*(mean - step))) / 2e-6 for step in steps])
        assert slopes @ mean == pytest.approx(made[name]["part"], abs=1e-9)
        corners = [[0.0, slopes[at], slopes[at] + slopes[2 + at]] for at in (0, 1)]
        ends = min(-1.0, sum(map(min, corners))), max(1.0, sum(map(max, corners)))
        expected = clustered_mean((slopes @ shares).tolist(), low=float(ends[0]), high=float(ends[1]))
        assert made[name]["interval"] == pytest.approx(expected, abs=1e-8)


def test_the_gains_interval_is_the_comparisons():
    for rows in ([(1, 2), (0, 3), (4, 1)], [(6, 0), (0, 0), (2, 2)]):
        before, after = point(rows), point(rows[::-1])
        made, compared = format_share(before, after), compare_points(before, after)
        assert (made["gain"], made["interval"]) == (compared["difference"], compared["interval"])
    greedy = [point_record([0, 1, 2], [[], [], []], greedy=answers) for answers in ([RIGHT] * 3, [RIGHT, WRONG, WRONG])]
    assert format_share(*greedy)["interval"] == compare_points(*greedy)["interval"]
    assert format_share(*greedy)["basis"] == "greedy"


@pytest.mark.parametrize("before", [(0.3, 0.4), (0.02, 0.5)])
def test_intervals_cover_the_true_parts(before):
    """Problems that differ, many times over with fixed numbers: at least 0.92 covered, few in format at first or many.

    With 2% in format it is common that none of them is right by chance, which says little of that accuracy.
    """
    rng = np.random.default_rng(0)
    covered = {"format": 0, "accuracy": 0}
    (f0, a0), (f1, a1) = before, (0.8, 0.5)
    truth = {"format": (f1 - f0) * (a0 + a1) / 2, "accuracy": (a1 - a0) * (f0 + f1) / 2}
    for _ in range(120):
        rows = []
        for f, a in ((f0, a0), (f1, a1)):
            parsed = rng.binomial(OF, rng.beta(4 * f, 4 * (1 - f), 40))
            right = rng.binomial(parsed, a)
            rows.append(point(list(zip(right.tolist(), (parsed - right).tolist(), strict=True))))
        made = format_share(*rows)
        for name, value in truth.items():
            low, high = made[name]["interval"]
            covered[name] += low <= value <= high
    assert min(covered.values()) >= 0.92 * 120


def test_a_timeout_is_not_in_format_and_other_problems_are_refused():
    late = point_record([0, 1], [[Answer(Outcome(None, "timeout")), WRONG], [RIGHT, WRONG]])
    assert format_share(late, late)["in_format"]["before"] == 0.75
    with pytest.raises(InputError, match="problem 1 is in one point"):
        format_share(late, point_record([0, 2], [[WRONG], [WRONG]]))
