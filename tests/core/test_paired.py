import itertools
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import binom, binomtest, norm

from assay.core.paired import mcnemar, paired_score, sign_flip
from assay.errors import InputError

INTEGERS = st.lists(st.integers(-5, 5), min_size=1, max_size=8)


def score(d, gained, lost, pairs):
    """The score statistic of ``P(gained) - P(lost) = d``, with the constrained likelihood maximised numerically."""

    def loss(q):
        cells = ((gained, q + d), (lost, q), (pairs - gained - lost, 1 - 2 * q - d))
        return -sum(count * math.log(max(p, 1e-300)) for count, p in cells if count)

    low, high = max(0.0, -d), (1 - d) / 2
    q = minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-13}).x
    return (gained - lost - pairs * d) / math.sqrt(pairs * (2 * q + d - d * d))


@pytest.mark.parametrize(("gained", "lost", "pairs"), [(9, 2, 30), (1, 6, 12), (4, 4, 20), (12, 1, 100)])
def test_the_interval_inverts_the_score_test(gained, lost, pairs):
    z, observed = norm.ppf(0.975), (gained - lost) / pairs
    low = brentq(lambda d: score(d, gained, lost, pairs) - z, -0.999, observed)
    high = brentq(lambda d: score(d, gained, lost, pairs) + z, observed, 0.999)
    made = paired_score(gained, lost, pairs)
    assert made == pytest.approx((low, high), abs=1e-6)
    for step in range(1, 100):
        d = -1 + step / 50
        assert (made[0] <= d <= made[1]) == (abs(score(d, gained, lost, pairs)) <= z)


def test_no_discordant_pair_still_leaves_room():
    z2 = norm.ppf(0.975) ** 2
    assert paired_score(0, 0, 40) == pytest.approx((-z2 / (40 + z2), z2 / (40 + z2)), abs=1e-12)


@pytest.mark.parametrize("pairs", [1, 2, 7])
def test_swapping_the_two_mirrors_the_interval_and_the_observed_is_inside(pairs):
    for gained, lost in itertools.product(range(pairs + 1), repeat=2):
        if gained + lost <= pairs:
            low, high = paired_score(gained, lost, pairs)
            assert -1 <= low <= (gained - lost) / pairs <= high <= 1
            assert paired_score(lost, gained, pairs) == pytest.approx((-high, -low), abs=1e-12)
    assert paired_score(pairs, 0, pairs)[1] == 1.0


def test_its_coverage_by_enumeration_of_every_outcome():
    pairs = 15
    outcomes = [(a, b) for a in range(pairs + 1) for b in range(pairs + 1 - a)]
    intervals = {outcome: paired_score(*outcome, pairs) for outcome in outcomes}
    covered = []
    for one, two in itertools.product([0.02, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9], repeat=2):
        if one + two < 1:
            total = 0.0
            for a, b in outcomes:
                if intervals[a, b][0] <= one - two <= intervals[a, b][1]:
                    ways = math.comb(pairs, a) * math.comb(pairs - a, b)
                    total += ways * one**a * two**b * (1 - one - two) ** (pairs - a - b)
            covered.append(total)
    assert min(covered) >= 0.92
    assert 0.94 <= sum(covered) / len(covered) <= 0.98


@pytest.mark.parametrize(("gained", "lost"), list(itertools.product(range(12), range(12))))
def test_mcnemar_is_the_binomial_test_of_one_half(gained, lost):
    expected = binomtest(gained, gained + lost, 0.5).pvalue if gained + lost else 1.0
    assert mcnemar(gained, lost) == pytest.approx(expected, rel=1e-12)


def test_mcnemar_with_thousands_of_pairs():
    assert mcnemar(2600, 2400) == pytest.approx(2 * binom.cdf(2400, 5000, 0.5), rel=1e-9)


def test_mcnemar_rejects_no_more_often_than_it_says():
    for pairs in (5, 12, 25):
        for level in (0.01, 0.05, 0.2):
            chance = sum(binom.pmf(k, pairs, 0.5) for k in range(pairs + 1) if mcnemar(k, pairs - k) <= level)
            assert chance <= level


def by_enumeration(differences):
    """The share of all sign patterns whose sum is at least as far from 0."""
    observed = abs(sum(differences))
    patterns = list(itertools.product((-1, 1), repeat=len(differences)))
    sums = [abs(sum(sign * value for sign, value in zip(signs, differences, strict=True))) for signs in patterns]
    return sum(value >= observed for value in sums) / len(patterns)


@given(INTEGERS)
def test_sign_flips_are_counted_exactly(differences):
    assert sign_flip(differences) == pytest.approx(by_enumeration(differences), rel=1e-13)


@given(INTEGERS, st.integers(1, 1000))
def test_the_unit_does_not_matter(differences, unit):
    assert sign_flip([unit * value for value in differences]) == sign_flip(differences)


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (5, 1), (3, 3), (20, 7)])
def test_sign_flips_of_single_answers_are_mcnemars_test(gained, lost):
    assert sign_flip([1] * gained + [-1] * lost + [0] * 9) == pytest.approx(mcnemar(gained, lost), rel=1e-12)


def test_a_thousand_problems_of_sixteen_samples_are_still_exact_and_quick():
    differences = [(7 * number) % 33 - 16 for number in range(1000)]
    start = time.process_time()
    exact = sign_flip(differences)
    assert time.process_time() - start < 2
    deviation = math.sqrt(sum(value**2 for value in differences))
    assert exact == pytest.approx(2 * norm.sf((abs(sum(differences)) - 0.5) / deviation), rel=0.01)


@pytest.mark.parametrize("count", [7, 60, 120])
def test_sampled_sign_flips_agree_with_exact_ones(count):
    """More sizes than one random word has bits; an exact binomial test at one in a million."""
    differences = [1] * (2 * count // 3) + [-1] * (count // 3)
    draws = 9_999
    made = sign_flip(differences, exact_work=0, draws=draws)
    hits = round(made * (draws + 1)) - 1
    assert made == (hits + 1) / (draws + 1)
    assert binomtest(hits, draws, sign_flip(differences)).pvalue > 1e-6


def test_sampled_sign_flips_repeat_and_differ_by_seed(monkeypatch):
    from assay.core import paired

    differences = list(range(-20, 24))
    first, again, other = (sign_flip(differences, seed=s, exact_work=0, draws=999) for s in (1, 1, 2))
    assert first == again != other
    monkeypatch.setattr(paired, "_CHUNK", 5 * 53)
    assert sign_flip(differences, seed=1, exact_work=0, draws=999) == first


def test_a_sampled_p_value_is_never_zero():
    assert sign_flip([1] * 100, exact_work=0, draws=99) == 0.01


@pytest.mark.parametrize(("gained", "lost", "pairs"), [(-1, 0, 5), (3, 3, 5), (0, 0, 0)])
def test_impossible_counts_of_pairs_are_refused(gained, lost, pairs):
    with pytest.raises(InputError, match=f"{gained} gained and {lost} lost of {pairs} pairs"):
        paired_score(gained, lost, pairs)


def test_other_impossible_arguments_are_refused():
    with pytest.raises(InputError, match="-1 gained"):
        mcnemar(-1, 2)
    with pytest.raises(InputError, match="coarser common unit"):
        sign_flip([2**53, 1])
    with pytest.raises(InputError, match="level = 0"):
        paired_score(1, 1, 3, level=0.0)
