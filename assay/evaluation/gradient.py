"""Exact gradients at given weights, and what sampling would add to them."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.tasks.chain import DIGITS, RESPONSE_LENGTH, Problem, encode_prompts, tree_rewards
from assay.tree.moments import leave_one_out_moments, scores
from assay.tree.objectives import penalised_reward
from assay.tree.trajectories import tree_logp


@dataclass(frozen=True)
class Noise:
    """Signal and noise of one sampled step, both exact.

    Attributes:
        signal: squared Euclidean norm of the exact gradient.
        variance: trace of the sampled gradient's covariance.
    """

    signal: float
    variance: float

    @property
    def ratio(self) -> float:
        """Return signal over variance, the squared gradient as a multiple of its own noise."""
        if not self.variance:
            return float("inf") if self.signal else 0.0
        return self.signal / self.variance


def exact_gradient(
    policy: nn.Module, reference: nn.Module, problems: tuple[Problem, ...], *, beta: float
) -> Float[Tensor, " D"]:
    """Return the float64 gradient of ``mean_x E[reward] - beta KL(policy ‖ reference)``, over all parameters,
    flattened."""
    policy64, logp, logp_ref, reward = _tree(policy, reference, problems)
    objective = penalised_reward(logp, logp_ref, reward, beta=beta).mean()
    parts = torch.autograd.grad(objective, tuple(policy64.parameters()))
    return torch.cat([part.flatten() for part in parts])


def leave_one_out_noise(
    policy: nn.Module, reference: nn.Module, problems: tuple[Problem, ...], *, beta: float, group_size: int
) -> Noise:
    """Return signal and noise of one leave-one-out step over a batch of problems, one group each, without sampling.

    Groups are independent, so that the batch mean has the mean of their gradients and 1 / P² times the sum of
    their variances.
    """
    policy64, logp, logp_ref, reward = _tree(policy, reference, problems)
    returns = (reward - beta * (logp - logp_ref)).detach()
    moments = [leave_one_out_moments(logp[i], returns[i], scores(logp[i], policy64)) for i in range(len(problems))]
    mean = torch.stack([one.mean for one in moments]).mean(0)
    variance = sum(one.variance(group_size) for one in moments) / len(problems) ** 2
    return Noise(float(mean @ mean), variance)


def _tree(
    policy: nn.Module, reference: nn.Module, problems: tuple[Problem, ...]
) -> tuple[nn.Module, Float[Tensor, "P M"], Float[Tensor, "P M"], Float[Tensor, "P M"]]:
    """Return a float64 copy of the policy and, over all trajectories, its logp (with gradient), the
    reference's, and the reward."""
    policy64 = copy.deepcopy(policy).double().requires_grad_(True)
    reference64 = copy.deepcopy(reference).double()
    prompts = encode_prompts(problems)
    logp = tree_logp(policy64, prompts, tokens=DIGITS, depth=RESPONSE_LENGTH)
    with torch.no_grad():
        logp_ref = tree_logp(reference64, prompts, tokens=DIGITS, depth=RESPONSE_LENGTH)
    return policy64, logp, logp_ref, tree_rewards(problems).double()
