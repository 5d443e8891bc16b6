import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.core.advantages import leave_one_out
from assay.core.algorithms import ALGORITHMS
from assay.core.estimator import Rows, prepare
from assay.core.pass_at_k import best_minus_second, pass_at_k
from assay.errors import InputError

ONE_GROUP = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]) | st.floats(-3, 3), min_size=2, max_size=7)


def by_subsets(reward, k):
    """G / C(G,k) times, over the subsets of k with i in them, what i adds to the best."""
    size = len(reward)
    out = [0.0] * size
    for subset in itertools.combinations(range(size), k):
        for i in subset:
            out[i] += max(reward[j] for j in subset) - max(reward[j] for j in subset if j != i)
    return [size / math.comb(size, k) * value for value in out]


@given(ONE_GROUP, st.data())
def test_it_is_the_mean_over_all_subsets(reward, data):
    k = data.draw(st.integers(2, len(reward)))
    made = pass_at_k(torch.tensor(reward, dtype=torch.float64), torch.zeros(len(reward), dtype=torch.long), k=k)
    assert made.tolist() == pytest.approx(by_subsets(reward, k), abs=1e-12)


@given(ONE_GROUP)
def test_with_k_of_the_group_only_the_best_leads(reward):
    rows, ids = torch.tensor(reward, dtype=torch.float64), torch.zeros(len(reward), dtype=torch.long)
    assert torch.allclose(best_minus_second(rows, ids), pass_at_k(rows, ids, k=len(reward)), atol=1e-12)


def test_one_try_is_leave_one_out():
    rows, ids = torch.tensor([1.0, 0.0, 0.5]), torch.zeros(3, dtype=torch.long)
    assert torch.equal(pass_at_k(rows, ids, k=1), leave_one_out(rows, ids))


@given(st.lists(ONE_GROUP, min_size=1, max_size=4), st.randoms())
def test_groups_of_several_sizes_in_any_order(groups, random):
    rows = [(value, number) for number, group in enumerate(groups) for value in group]
    random.shuffle(rows)
    reward = torch.tensor([value for value, _ in rows], dtype=torch.float64)
    ids = torch.tensor([number for _, number in rows])
    made = pass_at_k(reward, ids, k=2)
    for number in range(len(groups)):
        assert made[ids == number].tolist() == pytest.approx(by_subsets(reward[ids == number].tolist(), 2), abs=1e-12)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(2, 9))
def test_a_constant_group_is_silent(value, size):
    rows, ids = torch.full((size,), value), torch.zeros(size, dtype=torch.long)
    assert pass_at_k(rows, ids, k=2).tolist() == [0.0] * size


@pytest.mark.parametrize("k", [0, 3])
def test_k_beyond_the_group_is_refused(k):
    with pytest.raises(InputError, match=f"k = {k}: .* one has 2"):
        pass_at_k(torch.zeros(5), torch.tensor([0, 0, 0, 1, 1]), k=k)


def test_a_group_with_fewer_scores_than_tries_leaves_the_batch():
    algorithm = ALGORITHMS["pass_at_k"]
    settings = algorithm.settle({"k": 3})
    table = torch.zeros(8, 1, dtype=torch.float64)
    reward = torch.tensor([1.0, 0.0, float("nan"), float("nan"), 1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    group = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    rows = Rows(table, table, table, table, torch.ones(8, 1, dtype=torch.bool), reward, group)
    prepared = prepare(algorithm, settings, rows)
    assert not prepared.rows.mask[:4].any() and prepared.rows.mask[4:].all()
    assert prepared.totals.responses == 4
