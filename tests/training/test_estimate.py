import copy

import pytest
import torch

from assay.core.streams import Stream, uniforms
from assay.errors import UpdateError
from assay.evaluation.gradient import exact_gradient, leave_one_out_noise
from assay.policies.sampling import score
from assay.tasks.chain import draw_splits, encode_prompts
from assay.training.config import Recipe
from assay.training.estimate import exact_estimator, roll_out, sampled_estimator
from assay.training.state import initial_policy

PROBLEMS = draw_splits(29, train=20, test=20)["train"]
PROMPTS = encode_prompts(PROBLEMS)
BATCH = [0, 1, 2, 3, 4]


@pytest.fixture
def pair():
    """A float64 policy and a reference that differ, so that KL matters."""
    policy = initial_policy(Recipe(), dtype=torch.float64)
    reference = copy.deepcopy(policy).requires_grad_(False)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)).double()
    return policy, reference


def flat_gradient(policy, loss) -> torch.Tensor:
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, tuple(policy.parameters()))])


def test_rows_are_contiguous_groups_drawn_at_their_own_addresses(pair):
    policy, _ = pair
    rollout = roll_out(policy, PROMPTS[BATCH], problems=BATCH, size=8, seed=29, step=3)
    assert rollout.group.tolist() == [g for g in range(5) for _ in range(8)]
    assert torch.equal(rollout.prompt, PROMPTS[BATCH].repeat_interleave(8, 0))
    u = uniforms(29, Stream.ROLLOUT, 2, step=3, problem=[4], sample=[7])
    cumulative = policy(PROMPTS[4:5])[0, -1].softmax(0).cumsum(0)
    assert int((cumulative <= u[0, 0]).sum()) == int(rollout.response[39, 0])


def test_the_loss_is_written_out_by_hand(pair):
    """-(1/40) Σ A_i logp_i, A_i = R_i - mean of the other seven, R_i = reward - 0.03 log-ratio, in plain loops."""
    policy, reference = pair
    made = sampled_estimator(PROBLEMS, PROMPTS, size=8, beta=0.03, seed=29)(policy, reference, 3, BATCH)
    rollout = roll_out(policy, PROMPTS[BATCH], problems=BATCH, size=8, seed=29, step=3)
    logp = score(policy, rollout.prompt, rollout.response).sum(1)
    ratio = (logp - score(reference, rollout.prompt, rollout.response).sum(1)).tolist()
    right = [
        float(tuple(r) == PROBLEMS[g].answer())
        for r, g in zip(rollout.response.tolist(), rollout.group.tolist(), strict=True)
    ]
    returns = [r - 0.03 * x for r, x in zip(right, ratio, strict=True)]
    total = 0.0
    for i in range(40):
        others = [returns[j] for j in range(40) if j // 8 == i // 8 and j != i]
        total += (returns[i] - sum(others) / 7) * float(logp[i].detach())
    assert float(made.loss.detach()) == pytest.approx(-total / 40, abs=1e-14)
    assert made.strict_reward == pytest.approx(sum(right) / 40)
    assert made.log_ratio == pytest.approx(sum(ratio) / 40)
    assert made.shaped_return == pytest.approx(sum(returns) / 40)
    assert made.trajectories == 40
    assert made.sampler_gap < 1e-12


def test_the_exact_estimator_is_the_gradient_of_the_objective(pair):
    policy, reference = pair
    made = exact_estimator(PROBLEMS, PROMPTS, beta=0.03)(policy, reference, 0, BATCH)
    direct = exact_gradient(policy, reference, PROBLEMS[:5], beta=0.03)
    assert float(direct.norm()) > 1e-3
    assert torch.allclose(-flat_gradient(policy, made.loss), direct, atol=1e-15)


def test_sampled_gradients_approach_the_exact_one_at_the_rate_of_their_exact_variance(pair):
    """The mean of N first-step gradients misses the exact one by tr Var / N in expected square, for N = 1, 10, 100.

    1,200 draws make 1200 / N such means; their average must lie within four of its own standard errors.
    """
    policy, reference = pair
    estimate = sampled_estimator(PROBLEMS, PROMPTS, size=8, beta=0.03, seed=7)
    exact = exact_gradient(policy, reference, PROBLEMS[:5], beta=0.03)
    noise = leave_one_out_noise(policy, reference, PROBLEMS[:5], beta=0.03, group_size=8)
    draws = torch.stack([-flat_gradient(policy, estimate(policy, reference, step, BATCH).loss) for step in range(1200)])
    for size in (1, 10, 100):
        means = draws.view(-1, size, draws.shape[1]).mean(1)
        missed = (means - exact).square().sum(1) / (noise.variance / size)
        standard_error = float(missed.std()) / len(missed) ** 0.5
        assert standard_error < 0.2, "sharp enough to tell a rate from another"
        assert abs(float(missed.mean()) - 1) < 4 * standard_error


def test_a_sampler_that_is_not_the_policy_stops_the_step(pair, monkeypatch):
    """Draw from the reference instead: a stale sampler must be caught by its log-probabilities."""
    policy, reference = pair
    from assay.training import estimate as module

    fresh = module.sample
    monkeypatch.setattr(module, "sample", lambda _, *rest: fresh(reference, *rest))
    with pytest.raises(UpdateError, match="rl step 1: sampler and rescored log-probabilities differ by"):
        sampled_estimator(PROBLEMS, PROMPTS, size=8, beta=0.03, seed=29)(policy, reference, 0, BATCH)


def test_before_policy_and_reference_part_equal_rewards_are_a_group_without_signal():
    policy = initial_policy(Recipe())
    made = sampled_estimator(PROBLEMS, PROMPTS, size=8, beta=0.03, seed=29)(policy, copy.deepcopy(policy), 0, BATCH)
    rollout = roll_out(policy, PROMPTS[BATCH], problems=BATCH, size=8, seed=29, step=0)
    rewards = [
        PROBLEMS[g].verify(tuple(r)).score
        for g, r in zip(rollout.group.tolist(), rollout.response.tolist(), strict=True)
    ]
    silent = sum(len(set(rewards[8 * g : 8 * g + 8])) == 1 for g in range(5))
    assert silent > 0
    assert made.zero_signal_groups == silent


def test_once_they_part_equal_rewards_still_carry_signal(pair):
    policy, reference = pair
    made = sampled_estimator(PROBLEMS, PROMPTS, size=8, beta=0.03, seed=29)(policy, reference, 0, BATCH)
    assert made.strict_reward < 0.2, "nearly every group has equal rewards"
    assert made.zero_signal_groups == 0


def test_a_certain_policy_leaves_the_exact_estimator_without_signal():
    """With all mass on one response, in float32, the gradient is zero whatever the other advantages are."""
    policy = initial_policy(Recipe())
    with torch.no_grad():
        policy.head.weight *= 1e6
    made = exact_estimator(PROBLEMS, PROMPTS, beta=0.0)(policy, copy.deepcopy(policy), 0, BATCH)
    gradient = torch.cat([part.flatten() for part in torch.autograd.grad(made.loss, tuple(policy.parameters()))])
    assert float(gradient.abs().max()) == 0.0
    assert made.zero_signal_groups == made.groups
