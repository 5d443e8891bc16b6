import pytest
from scipy.stats import binom, binomtest

from assay.core.intervals import exact_binomial
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
