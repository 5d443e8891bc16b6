import itertools
from fractions import Fraction
from math import comb

import pytest

from assay.core.attempts import estimate_pass_at_k
from assay.errors import InputError

SMALL = [(c, n, k) for n in range(1, 7) for c in range(n + 1) for k in range(1, n + 1)]


@pytest.mark.parametrize(("right", "samples", "k"), SMALL)
def test_it_is_the_share_of_subsets_that_hold_a_right_one(right, samples, k):
    responses = [number < right for number in range(samples)]
    solved = [any(subset) for subset in itertools.combinations(responses, k)]
    assert estimate_pass_at_k(right, samples, k) == pytest.approx(sum(solved) / len(solved), abs=1e-15)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_its_expectation_is_pass_at_k(k):
    """Sum over every count of right samples, in exact fractions."""
    samples, p = 8, Fraction(2, 7)
    expected = sum(
        comb(samples, c) * p**c * (1 - p) ** (samples - c) * Fraction(estimate_pass_at_k(c, samples, k))
        for c in range(samples + 1)
    )
    assert float(expected) == pytest.approx(float(1 - (1 - p) ** k), abs=1e-15)


def test_a_solved_problem_is_solved_when_k_takes_all_its_samples():
    """Drawing with replacement would give 1 - (3/4)^4 = 0.68."""
    assert estimate_pass_at_k(1, 4, 4) == 1.0


def test_thousands_of_samples_do_not_overflow():
    assert estimate_pass_at_k(1, 5000, 2500) == 0.5
    assert estimate_pass_at_k(0, 5000, 2500) == 0.0
    assert 0 < 1 - estimate_pass_at_k(2, 5000, 4990) < 1e-5


@pytest.mark.parametrize("k", [0, -1, 5])
def test_k_beyond_the_samples_is_refused(k):
    with pytest.raises(InputError, match=f"pass@{k} from 4 samples"):
        estimate_pass_at_k(1, 4, k)


@pytest.mark.parametrize(("right", "samples"), [(-1, 4), (5, 4)])
def test_impossible_counts_are_refused(right, samples):
    with pytest.raises(InputError, match=f"{right} right of {samples} samples"):
        estimate_pass_at_k(right, samples, 1)
