import copy

import pytest
import torch

from assay.core.streams import Stream
from assay.evaluation.exact import evaluate_exactly
from assay.evaluation.gradient import exact_gradient
from assay.evaluation.point import evaluate_point
from assay.evaluation.sampled import evaluate_by_sampling
from assay.policies.sampling import score_stepwise
from assay.tasks.chain import draw_splits, encode_prompts
from assay.training.config import Recipe
from assay.training.state import initial_policy
from assay.tree.trajectories import all_responses

PROBLEMS = draw_splits(29, train=6, test=1)["train"]


@pytest.fixture
def pair():
    policy = initial_policy(Recipe())
    reference = copy.deepcopy(policy)
    with torch.no_grad():
        policy.head.weight += 0.3 * torch.randn(policy.head.weight.shape, generator=torch.Generator().manual_seed(0))
    return policy, reference


@torch.no_grad()
def test_success_and_kl_are_sums_over_all_hundred_responses_scored_one_token_at_a_time(pair):
    policy, reference = pair
    made = evaluate_exactly(policy, reference, PROBLEMS)
    every = all_responses(10, 2)
    for number, problem in enumerate(PROBLEMS):
        prompt = encode_prompts((problem,)).expand(100, -1)
        logp = score_stepwise(copy.deepcopy(policy).double(), prompt, every).sum(1)
        logp_ref = score_stepwise(copy.deepcopy(reference).double(), prompt, every).sum(1)
        right = torch.tensor([problem.verify(tuple(response)).score for response in every.tolist()])
        assert made.success[number] == pytest.approx(float((logp.exp() * right).sum()), abs=1e-14)
        assert made.kl[number] == pytest.approx(float((logp.exp() * (logp - logp_ref)).sum()), abs=1e-13)
    assert made.mean_success == pytest.approx(sum(made.success) / 6)


def test_kl_of_a_policy_from_itself_is_zero(pair):
    assert evaluate_exactly(pair[0], pair[0], PROBLEMS).kl == [0.0] * 6


def test_evaluation_leaves_the_weights_and_their_precision_alone(pair):
    policy, reference = pair
    before = [p.detach().clone() for p in policy.parameters()]
    evaluate_point(policy, reference, PROBLEMS, samples=10, seed=1, occasion=0)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(before, policy.parameters(), strict=True))


def test_evaluation_draws_nothing_from_the_training_streams(pair, monkeypatch):
    """Watch every draw: they are all from the evaluation stream, and exact evaluation makes none."""
    from assay.evaluation import sampled

    used = []
    original = sampled.uniforms
    monkeypatch.setattr(
        sampled, "uniforms", lambda seed, stream, *a, **k: (used.append(stream), original(seed, stream, *a, **k))[1]
    )
    evaluate_point(*pair, PROBLEMS, samples=5, seed=1, occasion=0)
    assert used == [Stream.EVALUATION]


def test_the_sampled_count_agrees_with_the_exact_mean(pair):
    """An exact binomial test at one in a million: the count is binomial with the mean success probability."""
    from scipy.stats import binomtest

    policy, reference = pair
    exact = evaluate_exactly(policy, reference, PROBLEMS).mean_success
    made = evaluate_by_sampling(policy, PROBLEMS, samples=20_000, seed=1, occasion=3)
    assert made.trials == 20_000
    assert binomtest(made.successes, made.trials, exact).pvalue > 1e-6


def test_two_occasions_draw_differently_and_one_repeats_itself(pair):
    def count(occasion: int) -> list[int]:
        return [
            evaluate_by_sampling(pair[0], PROBLEMS, samples=4000, seed=s, occasion=occasion).successes for s in range(5)
        ]

    assert count(0) == count(0) != count(1)


def test_the_exact_gradient_is_the_derivative_along_a_direction(pair):
    """Central differences of the objective, along a random direction through all 17 tensors."""
    policy, reference = pair
    policy64 = copy.deepcopy(policy).double()
    made = exact_gradient(policy64, reference, PROBLEMS, beta=0.03)
    direction = torch.randn(len(made), dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def objective(step: float) -> float:
        moved = copy.deepcopy(policy64)
        with torch.no_grad():
            sizes = [p.numel() for p in moved.parameters()]
            for parameter, part in zip(moved.parameters(), (step * direction).split(sizes), strict=True):
                parameter += part.view_as(parameter)
        measured = evaluate_exactly(moved, reference, PROBLEMS)
        return measured.mean_success - 0.03 * measured.mean_kl

    slope = (objective(1e-5) - objective(-1e-5)) / 2e-5
    assert slope == pytest.approx(float(made @ direction), rel=1e-6)
