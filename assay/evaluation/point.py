"""One set of frozen weights on one split: the exact values, and independent samples beside them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from assay.evaluation.exact import ExactEvaluation, evaluate_exactly
from assay.evaluation.sampled import SampledEvaluation, evaluate_by_sampling
from assay.tasks.chain import Problem


@dataclass(frozen=True)
class PointEvaluation:
    """What one set of frozen weights does on one split.

    Attributes:
        exact: success probability and KL (nats) of every problem, by enumeration.
        sampled: independent samples, with an exact binomial interval.
    """

    exact: ExactEvaluation
    sampled: SampledEvaluation


def evaluate_point(
    policy: nn.Module,
    reference: nn.Module,
    problems: tuple[Problem, ...],
    *,
    samples: int,
    seed: int,
    occasion: int,
) -> PointEvaluation:
    """Measure frozen weights exactly and by sampling; arguments as of the two functions called."""
    exact = evaluate_exactly(policy, reference, problems)
    return PointEvaluation(exact, evaluate_by_sampling(policy, problems, samples=samples, seed=seed, occasion=occasion))
