import pytest
import torch

from assay.core import weights
from assay.errors import InputError

MASK = torch.tensor([[True, True, False], [True, False, False], [True, True, True], [False, False, False]])
GROUP = torch.tensor([1, 0, 1, 0])
COUNTS = weights.totals(MASK, GROUP)


def test_totals_count_what_counts():
    """Lengths 2, 1, 3 and 0: three responses, six tokens, one of them in group 0."""
    assert (COUNTS.responses, COUNTS.tokens, COUNTS.groups) == (3, 6, 2)
    assert COUNTS.group_tokens.tolist() == [1, 5]


def test_a_batch_in_which_nothing_counts_still_divides():
    empty = weights.totals(torch.zeros_like(MASK), GROUP)
    assert (empty.responses, empty.tokens, empty.groups) == (1, 1, 1)
    made = weights.group_token_mean(torch.zeros_like(MASK), GROUP, group_tokens=empty.group_tokens, groups=1)
    assert not made.any()


def test_every_average_by_hand():
    row = {
        "token_sum": [1 / 3, 1 / 3, 1 / 3],
        "token_mean": [1 / 6, 1 / 3, 1 / 9],
        "global": [1 / 6, 1 / 6, 1 / 6],
        "constant": [1 / 30, 1 / 30, 1 / 30],
        "group": [1 / 10, 1 / 2, 1 / 10],
    }
    made = {
        "token_sum": weights.token_sum(MASK, responses=3),
        "token_mean": weights.token_mean(MASK, responses=3),
        "global": weights.global_token_mean(MASK, tokens=6),
        "constant": weights.constant_length(MASK, responses=3, length=10),
        "group": weights.group_token_mean(MASK, GROUP, group_tokens=COUNTS.group_tokens, groups=2),
    }
    for name, each in row.items():
        expected = MASK * torch.tensor([*each, 0.0])[:, None]
        assert torch.allclose(made[name], expected), name


def test_means_of_tokens_sum_to_one_over_the_batch():
    for made in (
        weights.token_mean(MASK, responses=3, dtype=torch.float64),
        weights.global_token_mean(MASK, tokens=6, dtype=torch.float64),
        weights.group_token_mean(MASK, GROUP, group_tokens=COUNTS.group_tokens, groups=2, dtype=torch.float64),
    ):
        assert float(made.sum()) == pytest.approx(1.0, abs=1e-15)


def test_a_count_of_zero_is_refused_by_name():
    with pytest.raises(InputError, match="tokens = 0: a mean needs the count of the whole batch"):
        weights.global_token_mean(MASK, tokens=0)
