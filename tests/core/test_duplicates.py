import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.core.advantages import leave_one_out
from assay.core.duplicates import distinct_leave_one_out, expected_pairs, response_ids
from assay.errors import InputError

CHANCES = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=4)


def zeros(size):
    return torch.zeros(size, dtype=torch.long)


@given(CHANCES, st.integers(0, 3))
def test_expected_pairs_are_those_of_counting(chances, spare):
    """Over all ordered samples that contain every response: the mean product of two counts."""
    distinct, size = len(chances), len(chances) + spare
    pairs, total = torch.zeros(distinct, distinct, dtype=torch.float64), 0.0
    for sample in itertools.product(range(distinct), repeat=size):
        if len(set(sample)) == distinct:
            mass = math.prod(chances[m] for m in sample)
            total += mass
            counts = torch.tensor([float(sample.count(m)) for m in range(distinct)], dtype=torch.float64)
            pairs += mass * torch.outer(counts, counts).fill_diagonal_(0.0)
    made = expected_pairs(torch.tensor(chances, dtype=torch.float64).log(), size)
    assert torch.allclose(made, pairs / total, atol=1e-12)


def test_vanishing_probabilities_do_not_break_it():
    """A response of probability e^-3000 was drawn once; the four other draws are of two others."""
    made = expected_pairs(torch.tensor([-1000.0, -1000.0, -3000.0], dtype=torch.float64), 5)
    assert made.isfinite().all()
    assert float(made[0, 2]) == pytest.approx(2.0) and float(made[1, 2]) == pytest.approx(2.0)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6), st.floats(-5, 0))
def test_without_a_duplicate_it_is_leave_one_out(reward, logp):
    rows, size = torch.tensor(reward, dtype=torch.float64), len(reward)
    made = distinct_leave_one_out(rows, torch.full((size,), logp, dtype=torch.float64), torch.arange(size), zeros(size))
    assert torch.allclose(made, leave_one_out(rows, zeros(size)), atol=1e-12)


@pytest.mark.parametrize("size", [3, 4, 5])  # at 3, two responses have c_a c_b = 2 either way
def test_the_variance_is_never_larger_and_the_mean_the_same(size):
    """A three-armed bandit with random chances and rewards, all ordered groups enumerated."""
    generator = torch.Generator().manual_seed(size)
    for _ in range(10):
        p = torch.rand(3, dtype=torch.float64, generator=generator)
        p, reward = p / p.sum(), torch.rand(3, dtype=torch.float64, generator=generator)
        moments = []
        for averaged in (False, True):
            mean, square = torch.zeros(3, dtype=torch.float64), 0.0
            for arms in itertools.product(range(3), repeat=size):
                ids = torch.tensor(arms)
                plain = leave_one_out(reward[ids], zeros(size))
                adv = distinct_leave_one_out(reward[ids], p[ids].log(), ids, zeros(size)) if averaged else plain
                made = (adv[:, None] * (torch.eye(3, dtype=torch.float64)[ids] - p)).mean(0)
                mean += p[ids].prod() * made
                square += float(p[ids].prod() * made.square().sum())
            moments.append((mean, square))
        assert torch.allclose(moments[1][0], moments[0][0], atol=1e-14)
        assert moments[1][1] == pytest.approx(moments[0][1]) if size == 3 else moments[1][1] < moments[0][1]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(2, 6))
def test_a_constant_group_is_silent(value, size):
    logp = torch.linspace(-1.0, -2.0, size)
    response = torch.arange(size) // 2
    assert distinct_leave_one_out(torch.full((size,), value), logp, response, zeros(size)).tolist() == [0.0] * size


def test_groups_with_the_same_distinct_responses_give_one_estimate():
    p = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    reward = torch.tensor([1.0, 0.0, 0.25], dtype=torch.float64)

    def estimate(arms):
        adv = distinct_leave_one_out(reward[arms], p[arms].log(), torch.tensor(arms), zeros(len(arms)))
        scores = torch.eye(3, dtype=torch.float64)[arms] - p
        return (adv[:, None] * scores).sum(0) / len(arms)

    assert torch.allclose(estimate([0, 0, 0, 1, 2]), estimate([2, 1, 2, 0, 1]), atol=1e-15)


def test_equal_responses_are_recognised_within_their_group_and_under_the_mask():
    tokens = torch.tensor([[1, 2, 9], [1, 2, 8], [1, 2, 3], [1, 2, 9], [1, 0, 0]])
    mask = torch.tensor([[True, True, False]] * 2 + [[True] * 3] + [[True, True, False]] + [[True, False, False]])
    ids = response_ids(tokens, mask, torch.tensor([0, 0, 0, 1, 0]))
    assert ids[0] == ids[1] and len(set(ids.tolist())) == 4


def test_equal_responses_with_different_returns_are_refused():
    with pytest.raises(InputError, match="group 0 has equal responses with different returns"):
        distinct_leave_one_out(torch.tensor([1.0, 0.0]), torch.zeros(2), zeros(2), zeros(2))
    with pytest.raises(InputError, match="group 0 has 1 response"):
        distinct_leave_one_out(torch.zeros(1), torch.zeros(1), zeros(1), zeros(1))
