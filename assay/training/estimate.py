"""From the current policy to one scalar loss whose gradient is the update: sampled, or over all trajectories.

Both build ``-(weights * terms).sum()`` with the same terms. Sampled, the weights are 1 / rows and the
trajectories are drawn; exact, the weights are the trajectories' own probabilities and all of them are there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.advantages import leave_one_out
from assay.core.kl import kl_in_reward
from assay.core.losses import reinforce_terms, weighted_loss
from assay.core.streams import Stream, uniforms
from assay.core.weights import sequence_mean, trajectory_mass
from assay.errors import UpdateError
from assay.policies.sampling import sample, score
from assay.tasks.chain import DIGITS, RESPONSE_LENGTH, Problem, tree_rewards
from assay.tree.trajectories import tree_logp
from assay.types import Policy, Rollout

SAMPLER_TOLERANCE = 1e-4
"""Largest difference, in nats, between the sampler's log-probability of a token and the rescored one. In
float32 the two forwards differ by rounding alone, near 1e-6."""


@dataclass(frozen=True)
class Estimate:
    """A loss and what is known about the batch it came from.

    Attributes:
        loss: scalar to minimise; its gradient is the estimate.
        zero_signal_groups: groups whose advantages are all exactly zero.
        groups: groups in the batch.
        strict_reward: mean of the verifier's scores.
        log_ratio: mean of logp - logp_ref, nats a response.
        shaped_return: mean of reward - beta * log-ratio.
        sampler_gap: largest |sampler's - rescored| token log-probability, nats; 0 where nothing is sampled.
        trajectories: responses drawn.
    """

    loss: Float[Tensor, ""]
    zero_signal_groups: int
    groups: int
    strict_reward: float
    log_ratio: float
    shaped_return: float
    sampler_gap: float
    trajectories: int


Estimator = Callable[[Policy, Policy, int, list[int]], Estimate]


def roll_out(
    policy: Policy, prompts: Int[Tensor, "P S"], *, problems: list[int], size: int, seed: int, step: int
) -> Rollout:
    """Draw ``size`` responses to each problem from the current policy, rows grouped by problem.

    Args:
        policy: the current policy.
        prompts: one prompt a problem.
        problems: the problems' numbers: with the seed, the step and the sample, the address of the randomness.
        size: responses a problem.
        seed: of the run.
        step: RL step, from 0.
    """
    group = torch.arange(len(problems)).repeat_interleave(size)
    address = [problem for problem in problems for _ in range(size)]
    uniform = uniforms(
        seed, Stream.ROLLOUT, RESPONSE_LENGTH, step=step, problem=address, sample=list(range(size)) * len(problems)
    )
    response, logp = sample(policy, prompts, group, uniform)
    return Rollout(prompts[group], response, group, logp)


def sampled_estimator(
    problems: tuple[Problem, ...], prompts: Int[Tensor, "P S"], *, size: int, beta: float, seed: int
) -> Estimator:
    """Return REINFORCE with a leave-one-out baseline and KL in the reward, over ``size`` fresh responses a problem.

    The estimate is unbiased for the gradient of ``mean_x E[reward] - beta KL(policy ‖ reference)`` over the
    batch's problems at the current weights.

    Called, it raises ``UpdateError`` when the sampler's log-probabilities and the rescored ones differ by more
    than rounding.
    """

    def estimate(policy: Policy, reference: Policy, step: int, batch: list[int]) -> Estimate:
        rollout = roll_out(policy, prompts[batch], problems=batch, size=size, seed=seed, step=step)
        rows = len(rollout.response)
        scores = [
            problems[batch[g]].verify(tuple(response)).score
            for g, response in zip(rollout.group.tolist(), rollout.response.tolist(), strict=True)
        ]
        token_logp = score(policy, rollout.prompt, rollout.response)
        with torch.no_grad():
            logp_ref = score(reference, rollout.prompt, rollout.response).sum(1)
        gap = float((token_logp.detach() - rollout.logp).abs().max())
        if not gap <= SAMPLER_TOLERANCE:
            raise UpdateError(
                f"rl step {step + 1}: sampler and rescored log-probabilities differ by {gap:.3g} nats (limit "
                f"{SAMPLER_TOLERANCE}): the responses were not drawn from the policy being updated"
            )
        logp = token_logp.sum(1)
        reward = torch.tensor(scores, dtype=logp.dtype)
        returns = kl_in_reward(reward, logp, logp_ref, beta=beta)
        adv = leave_one_out(returns, rollout.group)
        loss = weighted_loss(reinforce_terms(logp, adv), sequence_mean(rows, total=rows, dtype=logp.dtype))
        return Estimate(
            loss=loss,
            zero_signal_groups=_silent_groups(adv.view(len(batch), size)),
            groups=len(batch),
            strict_reward=float(reward.mean()),
            log_ratio=float((logp.detach() - logp_ref).mean()),
            shaped_return=float(returns.mean()),
            sampler_gap=gap,
            trajectories=rows,
        )

    return estimate


def exact_estimator(problems: tuple[Problem, ...], prompts: Int[Tensor, "P S"], *, beta: float) -> Estimator:
    """Return the exact gradient of the same objective: every trajectory, weighed by its own probability.

    ``S = Σ_y sg[p(y)] sg[F(y) - J] logp(y)`` with ``F = reward - beta (logp - logp_ref)`` and ``J = Σ_y p(y)
    F(y)``. Subtracting J changes nothing in exact arithmetic, since ``Σ_y p(y) ∇logp(y) = 0``; it makes a
    problem without signal exactly silent.
    """
    rewards = tree_rewards(problems)

    def estimate(policy: Policy, reference: Policy, step: int, batch: list[int]) -> Estimate:
        logp = tree_logp(policy, prompts[batch], tokens=DIGITS, depth=RESPONSE_LENGTH)
        with torch.no_grad():
            logp_ref = tree_logp(reference, prompts[batch], tokens=DIGITS, depth=RESPONSE_LENGTH)
        reward = rewards[batch].to(logp.dtype)
        mass = trajectory_mass(logp)
        returns = kl_in_reward(reward.flatten(), logp.flatten(), logp_ref.flatten(), beta=beta).view_as(logp)
        objective = (mass * returns).sum(1, keepdim=True) / mass.sum(1, keepdim=True)
        adv = returns - objective
        loss = weighted_loss(reinforce_terms(logp.flatten(), adv.flatten()).view_as(logp), mass)
        return Estimate(
            loss=loss,
            zero_signal_groups=_silent_groups(mass * adv),
            groups=len(batch),
            strict_reward=float((mass * reward).sum()),
            log_ratio=float((mass * (logp.detach() - logp_ref)).sum()),
            shaped_return=float((mass * returns).sum()),
            sampler_gap=0.0,
            trajectories=0,
        )

    return estimate


def _silent_groups(adv: Float[Tensor, "P G"]) -> int:
    """Count the groups whose every advantage is exactly zero."""
    return int((adv == 0).all(1).sum())
