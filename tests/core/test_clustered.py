import functools
import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, t

from assay.core.clustered import clustered_mean
from assay.errors import InputError

RATES = st.lists(st.floats(0, 1), min_size=2, max_size=12)


def student(values, degrees):
    centre = statistics.fmean(values)
    half = t.ppf(0.975, degrees) * statistics.stdev(values) / math.sqrt(len(values))
    return centre - half, centre + half


@given(RATES)
def test_it_is_students_interval_with_a_problem_added_at_each_end(rates):
    low, high = student([*rates, 0.0, 1.0], len(rates) - 1)
    made = clustered_mean(rates)
    mean = statistics.fmean(rates)
    assert made == pytest.approx((max(0, min(low, mean)), min(1, max(high, mean))), abs=1e-9)


@given(RATES | st.lists(st.just(0.0) | st.just(1.0), min_size=2), st.sampled_from([0.1, 0.95]))
def test_it_holds_what_was_observed_and_stays_in_the_range(rates, level):
    low, high = clustered_mean(rates, level=level)
    assert 0 <= low <= math.fsum(rates) / len(rates) <= high <= 1


@given(RATES)
def test_it_moves_with_the_scale(rates):
    low, high = clustered_mean(rates)
    scaled = clustered_mean([2 * rate - 1 for rate in rates], low=-1.0, high=1.0)
    assert scaled == pytest.approx((2 * low - 1, 2 * high - 1), abs=1e-9)


@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
def test_problems_that_all_agree_leave_room_of_about_three_in_n(rate):
    for count in (5, 20, 100):
        low, high = clustered_mean([rate] * count)
        assert low <= rate <= high
        assert 2 / count < high - low < 8 / count
    assert student([rate] * 20, 19) == (rate, rate)


def test_one_problem_says_nothing():
    assert clustered_mean([0.5]) == (0.0, 1.0)
    assert clustered_mean([0.5], low=-1.0) == (-1.0, 1.0)


def coverage(interval, count, chances):
    """Return the chance, over every outcome of ``count`` problems of two samples, that the mean is covered.

    A problem has none, one or both samples right with the given chances; outcomes with equal counts are one.
    """
    mean = chances[1] / 2 + chances[2]
    covered = 0.0
    for none in range(count + 1):
        for one in range(count + 1 - none):
            both = count - none - one
            ways = math.comb(count, none) * math.comb(count - none, one)
            low, high = interval((0.0,) * none + (0.5,) * one + (1.0,) * both)
            if low - 1e-12 <= mean <= high + 1e-12:
                covered += ways * math.prod(c**k for c, k in zip(chances, (none, one, both), strict=True))
    return covered


@pytest.mark.parametrize("count", [3, 8, 15])
def test_coverage_by_enumeration_of_every_outcome(count):
    """Two samples a problem, problems as different as they like: every distribution of (none, one, both) on a grid."""
    interval = functools.cache(clustered_mean)
    grid = [x / 10 for x in range(11)]
    worst = min(
        coverage(interval, count, (none, one, 1 - none - one))
        for none, one in itertools.product(grid, grid)
        if none + one <= 1 + 1e-9
    )
    assert worst >= 0.93


def test_students_own_interval_does_not_cover():
    """Nine problems in ten are never solved, the tenth always: what made the plain interval unfit."""
    chances = (0.9, 0.0, 0.1)
    assert coverage(lambda values: student(values, 7), 8, chances) < 0.6
    assert coverage(clustered_mean, 8, chances) > 0.95


@pytest.mark.parametrize("count", [2, 5, 20, 50])
def test_with_one_sample_a_problem_coverage_by_enumeration(count):
    intervals = [clustered_mean([1.0] * k + [0.0] * (count - k)) for k in range(count + 1)]
    for percent in range(1, 100):
        p = percent / 100
        assert sum(binom.pmf(k, count, p) for k, (low, high) in enumerate(intervals) if low <= p <= high) >= 0.936


@pytest.mark.parametrize("values", [[], [0.5, math.nan], [0.5, math.inf]])
def test_what_is_no_number_a_problem_is_refused(values):
    with pytest.raises(InputError, match="one finite number a problem"):
        clustered_mean(values)


def test_a_level_in_percent_is_refused():
    with pytest.raises(InputError, match="level = 95"):
        clustered_mean([0.0, 1.0], level=95.0)
