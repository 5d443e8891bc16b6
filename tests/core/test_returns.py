import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.core.returns import reward_to_go, whitened

NAN = float("nan")
MASK = torch.tensor([[True, True, True], [True, False, True], [True, False, False]])


def test_each_token_gets_the_reward_and_the_penalties_from_it_on():
    """Row by row: 1 - (1 + 2 + 3), ...; the middle token of the second row is not the policy's."""
    penalty = torch.tensor([[1.0, 2.0, 3.0], [1.0, NAN, 4.0], [1.0, NAN, NAN]])
    made = reward_to_go(torch.tensor([1.0, 10.0, 0.0]), penalty, MASK)
    assert made.tolist() == [[-5.0, -4.0, -2.0], [5.0, 0.0, 6.0], [-1.0, 0.0, 0.0]]


def test_a_nan_reward_surfaces():
    assert reward_to_go(torch.tensor([NAN]), torch.zeros(1, 3), MASK[:1]).isnan().all()


@given(st.lists(st.floats(-10, 10), min_size=6, max_size=6))
def test_whitening_is_over_the_tokens_that_count(values):
    table = torch.full((3, 3), NAN, dtype=torch.float64)
    table[MASK] = torch.tensor(values, dtype=torch.float64)
    made = whitened(table, MASK, eps=1e-6)
    assert not made[~MASK].any()
    if max(values) == min(values):
        assert not made.any()
    else:
        mean, spread = statistics.fmean(values), statistics.stdev(values) + 1e-6
        expected = [(value - mean) / spread for value in table[MASK].tolist()]
        assert made[MASK].tolist() == pytest.approx(expected, abs=1e-6)


def test_one_value_a_response_counts_once_a_token():
    """Over six tokens, 3 x 1, 2 x 0 and 1 x 1: mean 4/6."""
    made = whitened(torch.tensor([[1.0], [0.0], [1.0]]), MASK, eps=0.0)
    spread = statistics.stdev([1, 1, 1, 0, 0, 1])
    assert made[MASK].tolist() == pytest.approx([v / spread for v in (1 / 3, 1 / 3, 1 / 3, -2 / 3, -2 / 3, 1 / 3)])


def test_a_nan_is_not_a_constant_batch():
    assert whitened(torch.tensor([[NAN], [0.0], [1.0]]), MASK, eps=1e-6)[MASK].isnan().all()
