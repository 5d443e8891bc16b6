"""Exact evaluation: every trajectory of every problem, nothing sampled."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn

from assay.tasks.chain import (
    DIGITS,
    RESPONSE_LENGTH,
    Problem,
    encode_answers,
    encode_prompts,
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
def evaluate_exactly(policy: nn.Module, reference: nn.Module, problems: tuple[Problem, ...]) -> ExactEvaluation:
    """Enumerate all responses to each problem, in float64 whatever the weights' own precision.

    Args:
        policy: the policy to measure.
        reference: what KL is measured from.
        problems: at least one.

    Raises:
        InputError: a problem's probabilities do not sum to one.
    """
    prompts, answers = encode_prompts(problems), encode_answers(problems)
    policy64, reference64 = copy.deepcopy(policy).double(), copy.deepcopy(reference).double()
    logp = tree_logp(policy64, prompts, tokens=DIGITS, depth=RESPONSE_LENGTH)
    logp_ref = tree_logp(reference64, prompts, tokens=DIGITS, depth=RESPONSE_LENGTH)
    check_mass(logp)
    check_mass(logp_ref)
    right = (answers * torch.tensor([DIGITS, 1])).sum(1)
    success = logp.gather(1, right[:, None])[:, 0].exp()
    return ExactEvaluation(success.tolist(), sequence_kl(logp, logp_ref).tolist())
