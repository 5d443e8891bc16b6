"""The engine against brute force: every ordered group, M to the power G of them, one autograd call each."""

import itertools
import math
from collections import Counter

import pytest
import torch

from assay.core.advantages import loo_advantages
from assay.errors import InputError
from assay.tree.groups import group_moments, multisets
from assay.tree.moments import leave_one_out_moments
from assay.tree.prefix import Grammar, prefix_tree


class Problem:
    """A small tree, a tabular policy over it, graded rewards, and a sampler that may differ from the policy."""

    def __init__(self, *, tokens: int = 2, length: int = 2, end: int | None = 0, off_policy: bool = False) -> None:
        generator = torch.Generator().manual_seed(tokens + 10 * length)
        self.tree = prefix_tree(Grammar(tokens, length, end=end))
        shape = (len(self.tree.inner), tokens)
        self.logits = torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()
        moved = torch.randn(shape, dtype=torch.float64, generator=generator) if off_policy else 0.0
        self.token_logp = self.tree.token_logp(self.logits)
        self.logp_old = self.tree.token_logp(self.logits.detach() + moved)
        self.mask = self.tree.mask.double()
        self.reward = torch.rand(len(self.mask), dtype=torch.float64, generator=generator)
        flat = [
            torch.autograd.grad(value, self.logits, retain_graph=True)[0].flatten()
            for value in self.token_logp.flatten()
        ]
        self.jacobian = torch.stack(flat).view(*self.token_logp.shape, -1)

    def slope(self, loss):
        """Return ``∂L/∂logp`` of a group as the engine asks for it."""

        def gradient(group: torch.Tensor) -> torch.Tensor:
            leaf = self.token_logp[group].detach().requires_grad_()
            return torch.autograd.grad(loss(self, leaf, group), leaf)[0]

        return gradient

    def by_brute_force(self, loss, size: int) -> tuple[torch.Tensor, float]:
        """Mean and variance over every ordered group, differentiating the loss through the policy itself."""
        sampler = self.logp_old.sum(1).exp()
        mean, square = torch.zeros(self.logits.numel(), dtype=torch.float64), 0.0
        for members in itertools.product(range(len(sampler)), repeat=size):
            group = torch.tensor(members)
            value = loss(self, self.token_logp[group], group)
            made = torch.autograd.grad(value, self.logits, retain_graph=True)[0].flatten()
            chance = float(sampler[group].prod())
            mean += chance * made
            square += chance * float(made @ made)
        return mean, square - float(mean @ mean)


def rloo(problem, logp, group):
    return -(loo_advantages(problem.reward[group], len(group)) * logp.sum(1)).mean()


def token_mean_of_std_scaled(problem, logp, group):
    reward = problem.reward[group]
    adv = (reward - reward.mean()) / (reward.std() + 1e-4)
    return -(adv[:, None] * logp * problem.mask[group]).sum() / problem.mask[group].sum()


def clipped_ratio(problem, logp, group):
    ratio = (logp - problem.logp_old[group]).exp()
    adv = (problem.reward[group] - problem.reward[group].mean())[:, None]
    term = torch.minimum(ratio * adv, ratio.clamp(0.8, 1.2) * adv) * problem.mask[group]
    return -(term.sum(1) / problem.mask[group].sum(1)).mean()


@pytest.mark.parametrize("loss", [rloo, token_mean_of_std_scaled, clipped_ratio])
@pytest.mark.parametrize("off_policy", [False, True])
@pytest.mark.parametrize(("shape", "size"), [((2, 2, 0), 4), ((3, 2, 0), 3), ((2, 3, 0), 3), ((3, 2, None), 2)])
def test_mean_and_variance_match_every_ordered_group(loss, off_policy, shape, size):
    tokens, length, end = shape
    problem = Problem(tokens=tokens, length=length, end=end, off_policy=off_policy)
    made = group_moments(problem.slope(loss), problem.logp_old.sum(1), problem.jacobian, size=size)
    mean, variance = problem.by_brute_force(loss, size)
    scale = float(mean.norm())
    assert float((made.mean - mean).norm()) <= 1e-10 * scale
    assert made.variance == pytest.approx(variance, rel=1e-9)
    pushed = torch.einsum("mt,mtd->d", made.coefficient, problem.jacobian)
    assert float((pushed - mean).norm()) <= 1e-10 * scale


def test_nine_responses_in_groups_of_four_take_495_evaluations():
    problem = Problem(tokens=3, length=2, end=None)
    made = group_moments(problem.slope(rloo), problem.logp_old.sum(1), problem.jacobian, size=4)
    assert made.evaluations == math.comb(9 + 4 - 1, 4) == 495
    mean, variance = problem.by_brute_force(rloo, 4)
    assert float((made.mean - mean).norm()) <= 1e-10 * float(mean.norm())
    assert made.variance == pytest.approx(variance, rel=1e-9)


def test_it_agrees_with_the_closed_form_of_leave_one_out():
    problem = Problem(tokens=3, length=2, end=0)
    logp = problem.token_logp.sum(1)
    closed = leave_one_out_moments(logp, problem.reward, problem.jacobian.sum(1))
    for size in (2, 3, 5):
        made = group_moments(problem.slope(rloo), logp.detach(), problem.jacobian, size=size)
        assert torch.allclose(-made.mean, closed.mean, atol=1e-14)
        assert made.variance == pytest.approx(closed.variance(size), rel=1e-10)


def test_multisets_stand_for_every_ordered_group():
    counted = Counter(tuple(sorted(members)) for members in itertools.product(range(4), repeat=3))
    assert {tuple(members): orders for members, orders in multisets(4, 3)} == counted


def test_a_loss_that_depends_on_the_order_is_refused():
    def first_counts_double(problem, logp, group):
        weights = torch.ones(len(group), dtype=torch.float64)
        weights[0] = 2
        return -(weights * problem.reward[group] * logp.sum(1)).sum()

    problem = Problem()
    with pytest.raises(InputError, match="depends on the order of a group"):
        group_moments(problem.slope(first_counts_double), problem.logp_old.sum(1), problem.jacobian, size=3)


def test_more_groups_than_the_budget_are_refused_before_the_first():
    def never(group):
        raise AssertionError("evaluated")

    problem = Problem(tokens=3, length=2, end=None)
    with pytest.raises(InputError, match="495 groups of 4 out of 9 responses: more than the budget of 494"):
        group_moments(never, problem.logp_old.sum(1), problem.jacobian, size=4, budget=494)
