"""The engine against brute force: every ordered group, M to the power G of them, one autograd call each."""

import itertools
import math
from collections import Counter

import pytest
import torch

from assay.core.advantages import loo_advantages
from assay.errors import InputError
from assay.tree.groups import (
    CHUNK,
    DependenceError,
    batch_moments,
    classes_as_atoms,
    multisets,
    responses_as_atoms,
)
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

    def slopes(self, loss):
        """Return ``∂L/∂logp`` of every group as the engine asks for it."""

        def one(group: torch.Tensor) -> torch.Tensor:
            leaf = self.token_logp[group].detach().requires_grad_()
            return torch.autograd.grad(loss(self, leaf, group), leaf)[0]

        return lambda groups: torch.stack([one(group) for group in groups[0]])

    @property
    def atoms(self):
        return responses_as_atoms(self.logp_old.sum(1).detach(), self.jacobian)

    def moments(self, loss, size: int, **options):
        return batch_moments(self.slopes(loss), [self.atoms], [size], **options)

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
    made = problem.moments(loss, size)
    mean, variance = problem.by_brute_force(loss, size)
    scale = float(mean.norm())
    assert float((made.mean - mean).norm()) <= 1e-10 * scale
    assert made.variance == pytest.approx(variance, rel=1e-9)


def test_nine_responses_in_groups_of_four_take_495_evaluations():
    problem = Problem(tokens=3, length=2, end=None)
    made = problem.moments(rloo, 4)
    assert made.evaluations == math.comb(9 + 4 - 1, 4) == 495
    mean, variance = problem.by_brute_force(rloo, 4)
    assert float((made.mean - mean).norm()) <= 1e-10 * float(mean.norm())
    assert made.variance == pytest.approx(variance, rel=1e-9)


def test_it_agrees_with_the_closed_form_of_leave_one_out():
    problem = Problem(tokens=3, length=2, end=0)
    logp = problem.token_logp.sum(1)
    closed = leave_one_out_moments(logp, problem.reward, problem.jacobian.sum(1))
    for size in (2, 3, 5):
        made = problem.moments(rloo, size)
        assert torch.allclose(-made.mean, closed.mean, atol=1e-14)
        assert made.variance == pytest.approx(closed.variance(size), rel=1e-10)


def test_multisets_stand_for_every_ordered_group():
    counted = Counter(tuple(sorted(members)) for members in itertools.product(range(4), repeat=3))
    rows, orders = multisets(4, 3)
    assert {tuple(row): int(count) for row, count in zip(rows.tolist(), orders, strict=True)} == counted


def test_groups_past_one_chunk_are_all_counted():
    problem = Problem(tokens=3, length=2, end=None)
    made = problem.moments(rloo, 5)
    assert made.evaluations == math.comb(13, 5) > CHUNK
    closed = leave_one_out_moments(problem.token_logp.sum(1), problem.reward, problem.jacobian.sum(1))
    assert torch.allclose(-made.mean, closed.mean, atol=1e-13)


def binary(problem: Problem) -> Problem:
    problem.reward = (problem.reward > 0.5).double()
    return problem


@pytest.mark.parametrize("loss", [rloo, token_mean_of_std_scaled])
@pytest.mark.parametrize("size", [2, 3])
def test_classes_of_responses_give_the_same_mean_and_variance(loss, size):
    problem = binary(Problem(tokens=3, length=2, end=0))
    features = torch.stack([problem.reward, problem.mask.sum(1)], dim=1)
    classes = classes_as_atoms(problem.logp_old.sum(1).detach(), problem.jacobian, features)
    made = batch_moments(problem.slopes(loss), [classes], [size])
    assert made.evaluations < math.comb(7 + size - 1, size)
    mean, variance = problem.by_brute_force(loss, size)
    assert float((made.mean - mean).norm()) <= 1e-10 * float(mean.norm())
    assert made.variance == pytest.approx(variance, rel=1e-9)


def test_a_loss_that_sees_more_than_the_class_is_refused():
    problem = binary(Problem(tokens=3, length=2, end=0, off_policy=True))
    features = torch.stack([problem.reward, problem.mask.sum(1)], dim=1)
    classes = classes_as_atoms(problem.logp_old.sum(1).detach(), problem.jacobian, features)
    with pytest.raises(DependenceError, match="more of a response than its class"):
        batch_moments(problem.slopes(clipped_ratio), [classes], [2])


def two_problem_token_mean(first, second):
    """One token mean over a group of each of two problems: a loss that couples them."""

    def loss(logps, groups):
        pairs = list(zip((first, second), logps, groups, strict=True))
        adv = [loo_advantages(problem.reward[group], len(group)) for problem, _, group in pairs]
        total = sum(
            (a[:, None] * logp * problem.mask[group]).sum()
            for a, (problem, logp, group) in zip(adv, pairs, strict=True)
        )
        return -total / sum(problem.mask[group].sum() for problem, _, group in pairs)

    return loss


def test_uneven_groups_of_two_problems_in_one_batch_match_brute_force():
    problems, sizes = (Problem(tokens=2, length=2, end=0), Problem(tokens=2, length=3, end=0)), (2, 3)
    loss = two_problem_token_mean(*problems)

    def slopes(groups):
        rows = []
        for pair in zip(*groups, strict=True):
            leaves = [p.token_logp[g].detach().requires_grad_() for p, g in zip(problems, pair, strict=True)]
            made = torch.autograd.grad(loss(leaves, pair), leaves)
            rows.append(torch.cat([torch.nn.functional.pad(part, (0, 3 - part.shape[1])) for part in made]))
        return torch.stack(rows)

    atoms = [
        responses_as_atoms(
            p.token_logp.sum(1).detach(), torch.nn.functional.pad(p.jacobian, (0, 0, 0, 3 - p.jacobian.shape[1]))
        )
        for p in problems
    ]
    made = batch_moments(slopes, atoms, sizes)
    mean, square = 0.0, 0.0
    chances = [p.token_logp.sum(1).detach().exp() for p in problems]
    for first in itertools.product(range(len(chances[0])), repeat=2):
        for second in itertools.product(range(len(chances[1])), repeat=3):
            groups = [torch.tensor(first), torch.tensor(second)]
            value = loss([p.token_logp[g] for p, g in zip(problems, groups, strict=True)], groups)
            parts = torch.autograd.grad(value, [p.logits for p in problems], retain_graph=True)
            flat = torch.cat([part.flatten() for part in parts])
            chance = float(chances[0][groups[0]].prod() * chances[1][groups[1]].prod())
            mean, square = mean + chance * flat, square + chance * float(flat @ flat)
    assert float((made.mean - mean).norm()) <= 1e-10 * float(mean.norm())
    assert made.variance == pytest.approx(square - float(mean @ mean), rel=1e-9)


def test_groups_that_are_drawn_again_are_conditioned_on():
    problem = binary(Problem(tokens=3, length=2, end=0))
    mixed = lambda group: len(set(problem.reward[group].tolist())) > 1  # noqa: E731
    made = problem.moments(rloo, 2, accept=lambda _, group: mixed(group))
    mean, kept = torch.zeros(problem.logits.numel(), dtype=torch.float64), 0.0
    chance = problem.logp_old.sum(1).exp()
    for members in itertools.product(range(len(chance)), repeat=2):
        group = torch.tensor(members)
        if mixed(group):
            value = rloo(problem, problem.token_logp[group], group)
            grad = torch.autograd.grad(value, problem.logits, retain_graph=True)[0].flatten()
            mean, kept = mean + float(chance[group].prod()) * grad, kept + float(chance[group].prod())
    assert torch.allclose(made.mean, mean / kept, atol=1e-14)
    with pytest.raises(InputError, match="no group of 2 responses to problem 0 is accepted"):
        problem.moments(rloo, 2, accept=lambda _, group: False)


def test_a_loss_that_depends_on_the_order_is_refused():
    def first_counts_double(problem, logp, group):
        weights = torch.ones(len(group), dtype=torch.float64)
        weights[0] = 2
        return -(weights * problem.reward[group] * logp.sum(1)).sum()

    with pytest.raises(DependenceError, match="depends on the order of a group"):
        Problem().moments(first_counts_double, 3)


def test_more_groups_than_the_budget_are_refused_before_the_first():
    def never(problem, logp, group):
        raise AssertionError("evaluated")

    problem = Problem(tokens=3, length=2, end=None)
    with pytest.raises(InputError, match=r"495 batches of groups of \(4,\): more than the budget of 494"):
        problem.moments(never, 4, budget=494)


def test_a_response_that_is_never_drawn_is_no_atom():
    problem = Problem(tokens=3, length=2, end=0)
    logp = problem.logp_old.sum(1).detach().clone()
    logp[2] = float("-inf")
    assert 2 not in responses_as_atoms(logp, problem.jacobian).response.tolist()
