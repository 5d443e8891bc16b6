"""The closed form of the estimator's variance against brute force over every group, M to the power G of them."""

import itertools

import pytest
import torch
from torch import nn

from assay.core.advantages import loo_advantages
from assay.tree.moments import leave_one_out_moments, scores


class Bandit(nn.Module):
    """M arms behind a small map, so that scores are not orthogonal and there is more than one tensor."""

    def __init__(self, arms: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(arms)
        self.hidden = nn.Parameter(torch.randn(3, dtype=torch.float64, generator=generator))
        self.out = nn.Parameter(torch.randn(arms, 3, dtype=torch.float64, generator=generator))

    def logp(self) -> torch.Tensor:
        return (self.out @ self.hidden.tanh()).log_softmax(0)


@pytest.mark.parametrize(("arms", "size"), [(2, 2), (3, 2), (3, 3), (3, 4), (5, 3), (9, 2), (4, 5)])
def test_mean_and_variance_match_every_group(arms, size):
    bandit = Bandit(arms)
    logp = bandit.logp()
    score = scores(logp, bandit)
    reward = torch.linspace(0, 1, arms, dtype=torch.float64).square()
    returns = reward - 0.3 * logp.detach()
    moments = leave_one_out_moments(logp, returns, score)

    first = torch.zeros(score.shape[1], dtype=torch.float64)
    second = 0.0
    for group in itertools.product(range(arms), repeat=size):
        drawn = list(group)
        chance = float(logp.detach()[drawn].sum().exp())
        estimate = loo_advantages(returns[drawn], size) @ score[drawn] / size
        first += chance * estimate
        second += chance * float(estimate @ estimate)
    direct = torch.autograd.grad((logp.exp() * returns).sum(), tuple(bandit.parameters()))
    assert torch.allclose(moments.mean, first, atol=1e-13)
    assert torch.allclose(moments.mean, torch.cat([part.flatten() for part in direct]), atol=1e-13)
    assert moments.variance(size) == pytest.approx(second - float(first @ first), rel=1e-10)


def test_scores_are_the_gradients_of_each_logp():
    bandit = Bandit(3)
    made = scores(bandit.logp(), bandit)
    for arm in range(3):
        parts = torch.autograd.grad(bandit.logp()[arm], tuple(bandit.parameters()))
        assert torch.allclose(made[arm], torch.cat([part.flatten() for part in parts]), atol=1e-15)
