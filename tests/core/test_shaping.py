import itertools
import math

import pytest
import torch

from assay.core.advantages import leave_one_out
from assay.core.shaping import informative, overlong_penalty, scorable, scores
from assay.errors import InputError

PROBABILITY = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)


def score_of(arm):
    """∇log p of one arm, by its logits."""
    return torch.eye(3, dtype=torch.float64)[arm] - PROBABILITY


def expected(size, group_gradient):
    """Over all ordered groups of arms."""
    total = torch.zeros(3, dtype=torch.float64)
    for arms in itertools.product(range(3), repeat=size):
        total += math.prod(float(PROBABILITY[arm]) for arm in arms) * group_gradient(list(arms))
    return total


def test_the_overlong_penalty_at_every_length_around_its_ramp():
    """Longest 8, cache 4: free to 4, then a quarter a token, whole from 8."""
    made = overlong_penalty(torch.arange(3, 11), longest=8, cache=4)
    assert made.tolist() == [0.0, 0.0, -0.25, -0.5, -0.75, -1.0, -1.0, -1.0]
    with pytest.raises(InputError, match="overlong cache = 9"):
        overlong_penalty(torch.arange(3), longest=8, cache=9)


def test_groups_of_one_reward_are_dropped_and_a_nan_is_no_constant():
    reward = torch.tensor([0.1, 0.1, 0.1, 0.0, 1.0, float("nan"), 1.0])
    kept = informative(reward, torch.tensor([0, 0, 0, 1, 1, 2, 2]))
    assert kept.tolist() == [False] * 3 + [True] * 4


@pytest.mark.parametrize("size", [2, 3, 4])
def test_refilled_dynamic_sampling_scales_by_one_over_z(size):
    """The mean over kept groups alone is the gradient over Z = 1 - p^G - (1-p)^G."""
    reward = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    chance_kept = 0.0

    def kept(arms):
        nonlocal chance_kept
        ids = torch.zeros(size, dtype=torch.long)
        if not bool(informative(reward[arms], ids).all()):
            return torch.zeros(3, dtype=torch.float64)
        chance_kept += math.prod(float(PROBABILITY[arm]) for arm in arms)
        adv = leave_one_out(reward[arms], ids)
        return sum(adv[i] * score_of(arm) for i, arm in enumerate(arms)) / size

    made = expected(size, kept)
    p = float(PROBABILITY[0])
    assert chance_kept == pytest.approx(1 - p**size - (1 - p) ** size, abs=1e-14)
    direct = p * score_of(0)
    assert torch.allclose(made, direct, atol=1e-14), "dropped groups had no gradient"


def test_none_is_nan_and_leaves_its_group():
    reward = scores([1.0, None, 0.0, None, 0.5, 0.5])
    assert reward.isnan().tolist() == [False, True, False, True, False, False]
    group = torch.tensor([0, 0, 0, 1, 1, 2])
    assert scorable(reward, group).tolist() == [True, False, True, False, False, False]
    assert scorable(reward, group, least=1).tolist() == [True, False, True, False, True, True]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_among_the_scorable_the_estimand_is_their_own_expected_reward(size):
    """Arm 2 cannot be scored: P(K ≥ 2) ∇E[R | scorable]."""
    reward = torch.tensor([1.0, 0.0, float("nan")], dtype=torch.float64)

    def gradient(arms):
        stays = scorable(reward[arms], torch.zeros(size, dtype=torch.long)).nonzero()[:, 0]
        if not len(stays):
            return torch.zeros(3, dtype=torch.float64)
        adv = leave_one_out(reward[arms][stays], torch.zeros(len(stays), dtype=torch.long))
        return sum(a * score_of(arms[i]) for a, i in zip(adv, stays.tolist(), strict=True)) / len(stays)

    logits = PROBABILITY.log().requires_grad_()
    p = logits.softmax(0)
    conditional = torch.autograd.grad(p[0] / (p[0] + p[1]), logits)[0]
    u = float(PROBABILITY[:2].sum())
    enough = 1 - (1 - u) ** size - size * u * (1 - u) ** (size - 1)
    assert torch.allclose(expected(size, gradient), enough * conditional, atol=1e-14)
