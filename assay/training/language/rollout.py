"""From problems to graded responses: prompts as tokens, responses as drawn, rewards as outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.shaping import scores
from assay.core.streams import Stream
from assay.errors import ConfigError, UpdateError
from assay.policies.causal.tokens import Codec
from assay.policies.engines import Decoding, Drawn, Engine, Request
from assay.training.language.batch import Batch
from assay.types import Grader, Outcome, Response, Status, TextProblem

STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True)
class Rollout:
    """Graded responses to some problems, the rows of one group standing together.

    Attributes:
        problems: one for each group.
        batch: prompts and responses as tokens.
        drawn: each response as it was drawn.
        responses: each as text.
        outcomes: of each.
    """

    problems: tuple[TextProblem, ...]
    batch: Batch
    drawn: tuple[Drawn, ...]
    responses: tuple[Response, ...]
    outcomes: tuple[Outcome, ...]

    def logp_sampler(self, dtype: torch.dtype) -> Float[Tensor, "B T"]:
        """Return the log-probability that each token was drawn with; zero where there is none."""
        return self.batch.padded([one.logp for one in self.drawn], dtype)

    def reward(self, dtype: torch.dtype, *, without_truncated: bool) -> Float[Tensor, " B"]:
        """Return the score of each response; NaN where it has none, or was cut off and such ones are left out."""
        left_out = [without_truncated and response.truncated for response in self.responses]
        given = [None if out else outcome.score for out, outcome in zip(left_out, self.outcomes, strict=True)]
        return scores(given, dtype=dtype)


def encode(codec: Codec, problems: Sequence[TextProblem], *, longest: int) -> list[tuple[int, ...]]:
    """Return the prompt of each problem as tokens.

    Raises:
        ConfigError: a prompt is longer than ``longest``.
        InputError: a prompt is empty.
    """
    prompts = [codec.prompt(problem.prompt) for problem in problems]
    for problem, prompt in zip(problems, prompts, strict=True):
        if len(prompt) > longest:
            raise ConfigError(
                f"problem {problem.number}: its prompt has {len(prompt)} tokens and {longest} fit beside a response; "
                "shorten it, or lower rl.max_completion_length"
            )
    return prompts


def roll_out(
    engine: Engine,
    codec: Codec,
    grader: Grader,
    problems: Sequence[TextProblem],
    prompts: Sequence[tuple[int, ...]],
    decoding: Decoding,
    *,
    size: int,
    seed: int,
    step: int,
    version: int,
    stream: Stream = Stream.ROLLOUT,
) -> Rollout:
    """Draw ``size`` responses to each problem and grade them.

    Args:
        engine: what draws; it must hold the weights of ``version``.
        codec: of the model.
        grader: what scores.
        problems: one a group.
        prompts: their tokens.
        decoding: how tokens are chosen.
        size: responses a problem.
        seed: of the run.
        step: names the occasion, so that no two of them share random numbers.
        version: of the weights that are trained.
        stream: what the random numbers are for.

    Raises:
        UpdateError: the engine holds other weights.
    """
    if engine.version != version:
        raise UpdateError(
            f"step {step + 1}: the sampler holds weights {engine.version} and the trainer {version}; responses would "
            "be drawn from a stale policy"
        )
    requests = [
        Request(prompt, problem.number, tuple(range(size))) for problem, prompt in zip(problems, prompts, strict=True)
    ]
    groups = engine.generate(requests, decoding, seed=seed, stream=stream, step=step)
    drawn = tuple(one for group in groups for one in group)
    group = tuple(number for number, members in enumerate(groups) for _ in members)
    responses = tuple(codec.response(one.tokens, truncated=one.truncated) for one in drawn)
    outcomes = tuple(grader([problems[number] for number in group], responses))
    batch = Batch(tuple(prompts), tuple(one.tokens for one in drawn), group)
    return Rollout(tuple(problems), batch, drawn, responses, outcomes)


def outcome_counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Return how many outcomes there are of each status."""
    counted = Counter(outcome.status for outcome in outcomes)
    return {str(status): counted[status] for status in STATUSES}


def group_kinds(reward: Float[Tensor, " B"], group: Sequence[int], outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Say of each group whether it teaches anything, and if not why.

    ``informative``: two different rewards. ``all_right``, ``all_wrong``: every scored response is. ``all_equal``: one
    reward that is neither. ``unscorable``: fewer than two responses have a reward.
    """
    made = dict.fromkeys(("informative", "all_right", "all_wrong", "all_equal", "unscorable"), 0)
    for number in sorted(set(group)):
        rows = [row for row, of in enumerate(group) if of == number and not bool(reward[row].isnan())]
        statuses = {outcomes[row].status for row in rows}
        if len(rows) < 2:
            kind = "unscorable"
        elif len({float(reward[row]) for row in rows}) > 1:
            kind = "informative"
        elif statuses == {"right"}:
            kind = "all_right"
        else:
            kind = "all_equal" if "right" in statuses else "all_wrong"
        made[kind] += 1
    return made


def length_record(drawn: Sequence[Drawn]) -> dict[str, Any]:
    """Return what TRL records of the lengths of responses, in tokens, under its names."""
    lengths = [len(one.tokens) for one in drawn]
    ended = [len(one.tokens) for one in drawn if not one.truncated]
    return {
        "completions/mean_length": sum(lengths) / len(lengths),
        "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
        "completions/clipped_ratio": 1 - len(ended) / len(lengths),
        "completions/mean_terminated_length": sum(ended) / len(ended) if ended else 0.0,
    }
