"""Exact evaluation: every trajectory of every problem, nothing sampled."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.tasks.chain import (
    DIGITS,
    RESPONSE_LENGTH,
    Problem,
    encode_prompts,
    right_responses,
)
from assay.tree.objectives import check_mass, sequence_kl
from assay.tree.trajectories import tree_logp


@dataclass(frozen=True)
class ExactEvaluation:
    """What a policy does on some problems, exactly.

    Attributes:
        success: probability of the right response, one a problem.
        kl: KL(policy to reference) over the whole response, nats, one a problem.
    """

    success: list[float]
    kl: list[float]

    @property
    def mean_success(self) -> float:
        """Return the mean success probability over the problems."""
        return sum(self.success) / len(self.success)

    @property
    def mean_kl(self) -> float:
        """Return the mean KL over the problems, nats a response."""
        return sum(self.kl) / len(self.kl)


@torch.no_grad()
def exact_logp(policy: nn.Module, problems: tuple[Problem, ...]) -> Float[Tensor, "P M"]:
    """Return the log-probability of every response to every problem, in float64 whatever the weights' own precision.

    Raises:
        InputError: a problem's probabilities do not sum to one.
    """
    logp = tree_logp(copy.deepcopy(policy).double(), encode_prompts(problems), tokens=DIGITS, depth=RESPONSE_LENGTH)
    check_mass(logp)
    return logp


def measure(
    logp: Float[Tensor, "P M"], logp_ref: Float[Tensor, "P M"], problems: tuple[Problem, ...]
) -> ExactEvaluation:
    """Return success and KL from the log-probabilities of policy and reference over all responses."""
    success = logp.gather(1, right_responses(problems)[:, None])[:, 0].exp()
    return ExactEvaluation(success.tolist(), sequence_kl(logp, logp_ref).tolist())


def evaluate_exactly(policy: nn.Module, reference: nn.Module, problems: tuple[Problem, ...]) -> ExactEvaluation:
    """Enumerate all responses to each problem.

    Args:
        policy: the policy to measure.
        reference: what KL is measured from.
        problems: at least one.

    Raises:
        InputError: a problem's probabilities do not sum to one.
    """
    return measure(exact_logp(policy, problems), exact_logp(reference, problems), problems)
