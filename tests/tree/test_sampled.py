"""Sampled moments against the enumerated ones of the same loss, and their intervals against their own claim."""

import pytest
import torch

from assay.audit.slopes import LossSlopes, atoms_of
from assay.tree.fields import objective_gradient
from assay.tree.groups import batch_moments
from assay.tree.sampled import sampled_moments
from assay.tree.worlds import small_world

WORLD = small_world()[:1]


def centred(logp, reward, group, mask):
    sums = torch.zeros(int(group.max()) + 1, dtype=reward.dtype).index_add(0, group, reward)
    adv = reward - (sums / torch.bincount(group))[group]
    return -(adv * torch.where(mask > 0, logp, 0.0).sum(1)).mean()


def draw(size: int, **options):
    slopes, atoms = LossSlopes(centred, WORLD, [0], [size]), atoms_of(WORLD, 0, logits=False)
    exact = batch_moments(slopes, [atoms], [size])
    stated = objective_gradient({"reward": 1.0}, WORLD)
    return exact, sampled_moments(slopes, [atoms], [size], stated, **options)


def test_sampled_moments_come_near_the_exact_ones():
    exact, made = draw(3, batches=20_000)
    noise = (exact.variance / 20_000) ** 0.5
    assert float((made.mean - exact.mean).norm()) < 4 * noise
    assert made.variance == pytest.approx(exact.variance, rel=0.05)


def test_intervals_hold_what_is_true():
    """The ascent is 2/3 of the gradient, so the bias is 1/3 of it, in one direction."""
    for seed in range(5):
        _, made = draw(3, batches=4_000, seed=seed)
        low, high = made.coefficient
        assert low < 2 / 3 < high
        low, high = made.bias
        assert 0 < low < 1 / 3 + 0.1 and high > 0.2
        assert high - low < 0.5


def test_draws_are_addressed_by_their_seed():
    first, again, other = (draw(2, batches=600, seed=seed)[1] for seed in (1, 1, 2))
    assert torch.equal(first.mean, again.mean)
    assert not torch.equal(first.mean, other.mean)
