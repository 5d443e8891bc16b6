import pytest
from scipy.stats import binom, binomtest

from assay.core.intervals import exact_binomial, wilson
from assay.errors import InputError


@pytest.mark.parametrize(("successes", "trials"), [(0, 1), (1, 1), (0, 50), (50, 50), (7, 50), (478, 1000)])
def test_it_is_scipys_clopper_pearson(successes, trials):
    theirs = binomtest(successes, trials).proportion_ci(0.95, "exact")
    assert exact_binomial(successes, trials) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_coverage_is_at_least_the_level_for_every_probability():
    """Add up, for each p, the chance of every count whose interval contains p."""
    trials = 30
    intervals = [exact_binomial(k, trials) for k in range(trials + 1)]
    for percent in range(1, 100):
        p = percent / 100
        covered = sum(binom.pmf(k, trials, p) for k, (low, high) in enumerate(intervals) if low <= p <= high)
        assert covered >= 0.95


@pytest.mark.parametrize(("successes", "trials"), [(1, 0), (-1, 5), (6, 5)])
def test_impossible_counts_are_refused(successes, trials):
    with pytest.raises(InputError, match=f"{successes} successes in {trials} trials"):
        exact_binomial(successes, trials)


@pytest.mark.parametrize(("successes", "trials"), [(0, 1), (1, 1), (0, 50), (50, 50), (7, 50), (478, 1000)])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_it_is_scipys_wilson(successes, trials, level):
    theirs = binomtest(successes, trials).proportion_ci(level, "wilson")
    assert wilson(successes, trials, level=level) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_wilsons_coverage_is_near_the_level_and_its_lowest_is_what_the_docstring_says():
    """Add up, for each p, the chance of every count whose interval contains p."""
    trials = 30
    intervals = [wilson(k, trials) for k in range(trials + 1)]
    ends = [low + side for low, _ in intervals for side in (-1e-9, 1e-9)]  # where coverage jumps
    even = [step / 500 for step in range(1, 500)]
    covered = {
        p: sum(binom.pmf(k, trials, p) for k, (low, high) in enumerate(intervals) if low <= p <= high)
        for p in even + [end for end in ends if 0 < end < 1]
    }
    assert 0.945 <= sum(covered[p] for p in even) / len(even) <= 0.96
    assert 0.83 <= min(covered.values()) <= 0.84
    assert min(share for p, share in covered.items() if 1 <= trials * p <= trials - 1) >= 0.91


@pytest.mark.parametrize("interval", [wilson, exact_binomial])
@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_a_level_that_is_no_coverage_is_refused(interval, level):
    with pytest.raises(InputError, match=f"level = {level}"):
        interval(1, 2, level=level)


def test_impossible_counts_are_refused_by_wilson_too():
    with pytest.raises(InputError, match="3 successes in 2 trials"):
        wilson(3, 2)
