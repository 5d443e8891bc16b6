"""Independent sampling under frozen weights: the estimate that an exact value can be checked against."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from torch import nn

from assay.core.intervals import exact_binomial
from assay.core.streams import Stream, uniforms
from assay.policies.sampling import sample
from assay.tasks.chain import RESPONSE_LENGTH, Problem, encode_prompts

LEVEL = 0.95
CHUNK = 100_000
"""Draws made at once; the numbers are addressed, so that chunks change nothing."""


@dataclass(frozen=True)
class SampledEvaluation:
    """Successes among independent samples.

    Attributes:
        successes: responses that the verifier accepted.
        trials: responses drawn.
        low: lower end of the exact 95% binomial interval of the success probability.
        high: its upper end.
    """

    successes: int
    trials: int
    low: float
    high: float


def evaluate_by_sampling(
    policy: nn.Module, problems: tuple[Problem, ...], *, samples: int, seed: int, occasion: int
) -> SampledEvaluation:
    """Draw problem and response ``samples`` times, independently, from the evaluation stream.

    Each draw first picks a problem uniformly. So the draws are identically distributed, the count of successes
    is exactly binomial with the mean success probability, and the Clopper-Pearson interval applies; with a
    fixed number of draws a problem it would only be a bound.

    Args:
        policy: frozen while this runs. A float64 copy of it is sampled, so that rounding on another machine
            does not change which responses are drawn.
        problems: the split to draw from.
        samples: draws, at least 1.
        seed: of the run.
        occasion: sets this evaluation's numbers apart from every other evaluation's.
    """
    frozen = copy.deepcopy(policy).double()
    successes = 0
    for first in range(0, samples, CHUNK):
        draws = list(range(first, min(first + CHUNK, samples)))
        uniform = uniforms(
            seed, Stream.EVALUATION, 1 + RESPONSE_LENGTH, step=occasion, problem=[0] * len(draws), sample=draws
        )
        chosen = (uniform[:, 0] * len(problems)).long()
        responses, _ = sample(frozen, encode_prompts(problems), chosen, uniform[:, 1:])
        successes += sum(
            problems[index].verify(tuple(response)).status == "right"
            for index, response in zip(chosen.tolist(), responses.tolist(), strict=True)
        )
    return SampledEvaluation(successes, samples, *exact_binomial(successes, samples, level=LEVEL))
