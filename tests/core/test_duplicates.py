import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.core.advantages import leave_one_out
from assay.core.duplicates import distinct_leave_one_out, drawn_once, response_ids
from assay.errors import InputError

CHANCES = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=4)


def zeros(size):
    return torch.zeros(size, dtype=torch.long)


@given(CHANCES, st.integers(0, 3))
def test_the_chance_of_one_draw_is_that_of_counting(chances, spare):
    """Over all ordered samples that contain every response: the mass with just one draw of each."""
    size = len(chances) + spare
    once, total = [0.0] * len(chances), 0.0
    for sample in itertools.product(range(len(chances)), repeat=size):
        if len(set(sample)) == len(chances):
            mass = math.prod(chances[m] for m in sample)
            total += mass
            for m in range(len(chances)):
                once[m] += mass * (sample.count(m) == 1)
    made = drawn_once(torch.tensor(chances, dtype=torch.float64).log(), size)
    assert made.tolist() == pytest.approx([value / total for value in once], abs=1e-12)


def test_vanishing_probabilities_do_not_break_it():
    """Responses of probability e^-1000 and less: still a probability."""
    made = drawn_once(torch.tensor([-1000.0, -1001.0, -3000.0], dtype=torch.float64), 5)
    assert bool((made >= 0).all()) and bool((made <= 1).all()) and float(made[2]) == pytest.approx(1.0)


def test_rare_and_different_responses_are_leave_one_out():
    reward = torch.tensor([1.0, 0.0, 0.5, 0.0], dtype=torch.float64)
    made = distinct_leave_one_out(reward, torch.full((4,), -60.0, dtype=torch.float64), torch.arange(4), zeros(4))
    assert torch.allclose(made, leave_one_out(reward, zeros(4)), atol=1e-12)


def test_two_responses_are_leave_one_out_whatever_their_probability():
    """(R_a - R_b) s_a from the sample, p_b (R_b - R_a) s_b summed, and the mean over both samples; the extra terms are
    p_a (R_a - R_b) s_a + p_b (R_b - R_a) s_b, of mean zero only with the sampled group: checked in expectation
    elsewhere, here for vanishing p."""
    reward = torch.tensor([1.0, 0.0], dtype=torch.float64)
    made = distinct_leave_one_out(reward, torch.full((2,), -80.0, dtype=torch.float64), torch.arange(2), zeros(2))
    assert torch.allclose(made, leave_one_out(reward, zeros(2)), atol=1e-12)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(2, 6))
def test_a_constant_group_is_silent(value, size):
    logp = torch.linspace(-1.0, -2.0, size)
    response = torch.arange(size) // 2
    assert distinct_leave_one_out(torch.full((size,), value), logp, response, zeros(size)).tolist() == [0.0] * size


def test_knowing_every_response_gives_the_exact_gradient():
    """All of a three-armed bandit seen, each with its probability, and duplicates: no noise is left in what is summed,
    so two groups with the same arms give the same estimate."""
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
