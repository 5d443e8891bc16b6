import itertools
import statistics
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.core.advantages import leave_one_out, loo_advantages, mean_centred, std_scaled, success_scaled
from assay.errors import InputError


def by_hand(returns: list[float], group: list[int]) -> list[float]:
    """Each return minus the mean of the others of its group, in exact fractions."""
    out = []
    for i, g in enumerate(group):
        others = [Fraction(returns[j]) for j in range(len(returns)) if group[j] == g and j != i]
        out.append(float(Fraction(returns[i]) - sum(others) / len(others)))
    return out


def test_one_success_in_eight_gives_one_and_minus_a_seventh():
    advantages = loo_advantages(torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0], dtype=torch.float64), 8)
    assert advantages.tolist() == [1.0] + [float(Fraction(-1, 7))] * 7
    assert abs(float(advantages.sum())) < 1e-15


@given(st.lists(st.lists(st.floats(-100, 100), min_size=2, max_size=5), min_size=1, max_size=4), st.randoms())
def test_uneven_groups_in_any_order_match_exact_fractions(groups, random):
    rows = [(value, number) for number, group in enumerate(groups) for value in group]
    random.shuffle(rows)
    returns, ids = [value for value, _ in rows], [number for _, number in rows]
    made = leave_one_out(torch.tensor(returns, dtype=torch.float64), torch.tensor(ids))
    assert made.tolist() == pytest.approx(by_hand(returns, ids), abs=1e-9)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(2, 9))
def test_a_constant_group_has_advantages_of_exactly_zero(value, size):
    assert loo_advantages(torch.full((size,), value, dtype=torch.float32), size).tolist() == [0.0] * size


def test_contiguous_groups_are_the_same_as_explicit_ids():
    returns = torch.arange(12.0).square()
    ids = torch.tensor([0] * 4 + [1] * 4 + [2] * 4)
    assert torch.equal(loo_advantages(returns, 4), leave_one_out(returns, ids))


def test_expected_gradient_is_that_of_the_expected_return_for_every_group_size():
    """Enumerate every group of G from a three-armed bandit: E[A_i ∇logp_i] must equal ∇E[R]."""
    logits = torch.tensor([0.3, -0.5, 0.1], dtype=torch.float64, requires_grad=True)
    reward = torch.tensor([1.0, 0.2, -0.4], dtype=torch.float64)
    logp = logits.log_softmax(0)
    direct = torch.autograd.grad((logp.exp() * reward).sum(), logits, retain_graph=True)[0]
    for size in (2, 3, 4):
        expected = torch.zeros(3, dtype=torch.float64)
        for arms in itertools.product(range(3), repeat=size):
            arms = list(arms)
            chance = float(logp.detach()[arms].exp().prod())
            loss = (loo_advantages(reward[arms], size) * logp[arms]).mean()
            expected += chance * torch.autograd.grad(loss, logits, retain_graph=True)[0]
        assert torch.allclose(expected, direct, atol=1e-14)


def test_a_group_of_one_is_refused_by_name():
    with pytest.raises(InputError, match="group 1 has 1 response"):
        leave_one_out(torch.zeros(3), torch.tensor([0, 0, 1]))
    with pytest.raises(InputError, match="group_size = 1"):
        loo_advantages(torch.zeros(4), 1)


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(InputError, match="7 returns do not divide into groups of 4"):
        loo_advantages(torch.zeros(7), 4)


def flattened(groups, random):
    """Rows of several groups in a random order, as returns and ids."""
    rows = [(value, number) for number, group in enumerate(groups) for value in group]
    random.shuffle(rows)
    return torch.tensor([value for value, _ in rows], dtype=torch.float64), torch.tensor([number for _, number in rows])


GROUPS = st.lists(st.lists(st.floats(-100, 100), min_size=2, max_size=5), min_size=1, max_size=4)


@given(GROUPS, st.randoms())
def test_mean_centred_is_leave_one_out_times_g_minus_one_over_g(groups, random):
    returns, ids = flattened(groups, random)
    sizes = torch.bincount(ids)[ids]
    assert torch.allclose(mean_centred(returns, ids), leave_one_out(returns, ids) * (sizes - 1) / sizes, atol=1e-9)


@given(GROUPS, st.randoms(), st.sampled_from([0.0, 1e-6, 0.5]))
def test_std_scaled_matches_statistics(groups, random, eps):
    returns, ids = flattened(groups, random)
    made = std_scaled(returns, ids, eps=eps)
    for number, group in enumerate(groups):
        spread = statistics.stdev(group)
        if max(group) == min(group):
            assert made[ids == number].tolist() == [0.0] * len(group)
        elif spread > 1e-6:
            mean = statistics.fmean(group)
            expected = [(value - mean) / (spread + eps) for value in returns[ids == number].tolist()]
            assert made[ids == number].tolist() == pytest.approx(expected, abs=1e-6)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(2, 9), st.sampled_from([0.0, 1e-6]))
def test_a_constant_group_has_no_deviation_whatever_its_rounding(value, size, eps):
    returns, ids = torch.full((size,), value, dtype=torch.float32), torch.zeros(size, dtype=torch.long)
    assert std_scaled(returns, ids, eps=eps).tolist() == [0.0] * size
    assert mean_centred(returns, ids).tolist() == [0.0] * size
    if value >= 0:
        assert success_scaled(returns, ids).tolist() == [0.0] * size


@given(GROUPS, st.randoms(), st.floats(-5, 5))
def test_a_common_shift_changes_nothing(groups, random, shift):
    returns, ids = flattened(groups, random)
    for advantage in (leave_one_out, mean_centred):
        assert torch.allclose(advantage(returns + shift, ids), advantage(returns, ids), atol=1e-9)


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=6), min_size=1, max_size=4), st.randoms())
def test_success_scaled_divides_by_the_fraction_of_successes(groups, random):
    returns, ids = flattened(groups, random)
    made = success_scaled(returns, ids)
    for number, group in enumerate(groups):
        k, size = int(sum(group)), len(group)
        expected = {0.0: -1.0 if k else 0.0, 1.0: (size - k) / k if k else 0.0}
        assert made[ids == number].tolist() == pytest.approx([expected[r] for r in returns[ids == number].tolist()])


def test_a_nan_surfaces_in_its_group_alone():
    returns, ids = torch.tensor([1.0, float("nan"), 0.0, 1.0]), torch.tensor([0, 0, 1, 1])
    for advantage in (mean_centred, lambda r, g: std_scaled(r, g, eps=1e-6), success_scaled):
        made = advantage(returns, ids)
        assert made[:2].isnan().all() and made[2:].isfinite().all()


def test_what_needs_two_or_no_negative_reward_says_so():
    with pytest.raises(InputError, match="group 0 has 1 response: a deviation needs at least 2"):
        std_scaled(torch.zeros(1), torch.zeros(1, dtype=torch.long), eps=1e-6)
    with pytest.raises(InputError, match="reward -1: a fraction of successes"):
        success_scaled(torch.tensor([1.0, -1.0]), torch.zeros(2, dtype=torch.long))
