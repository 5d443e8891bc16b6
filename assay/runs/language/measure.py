"""Measuring a policy at a point of a run: sampled and greedy responses, graded, recorded and counted."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from assay.core.streams import Stream
from assay.evaluation.answers import Answer, point_record
from assay.policies.causal.model import CausalPolicy
from assay.policies.engines import Decoding
from assay.runs.language.samples import Sample
from assay.runs.language.workshop import Workshop
from assay.training.language.plan import measured_training
from assay.training.language.rollout import Rollout, roll_out
from assay.types import TextProblem

Record = dict[str, Any]
SPLITS = ("train", "test")


def measured(workshop: Workshop, split: str) -> Sequence[TextProblem]:
    """Return the problems of a split that are measured: all of test, and as many of train where there are."""
    problems = workshop.problems[split]
    if split == "test":
        return problems
    return problems[: measured_training(len(problems), len(workshop.problems["test"]))]


def measure(
    workshop: Workshop,
    policy: CausalPolicy,
    point: str,
    split: str,
    *,
    occasion: int,
    samples: int,
    greedy: bool,
    keep: Callable[[Sample], None] = lambda sample: None,
) -> Record:
    """Return the record of a point on a split (:func:`assay.evaluation.answers.point_record`).

    Args:
        workshop: of the run.
        policy: its weights, which do not change.
        point: its name, for the samples.
        split: ``"train"`` or ``"test"``.
        occasion: the step in the address of the evaluation's random numbers; another one for each point and split.
        samples: responses a problem; 0 for none.
        greedy: whether the likeliest response is graded as well.
        keep: receives every response.
    """
    problems = measured(workshop, split)
    drawn: dict[bool, list[list[Answer]]] = {}
    for likeliest, size in ((False, samples), (True, int(greedy))):
        if not size:
            continue
        made = _responses(workshop, policy, problems, split, occasion, size, likeliest)
        fits = in_format(workshop.recipe.grading.format, made)
        answers: list[list[Answer]] = [[] for _ in problems]
        for row, group in enumerate(made.batch.group):
            outcome, response = made.outcomes[row], made.responses[row]
            answer = Answer(outcome, response.truncated, fits[row])
            number = None if likeliest else len(answers[group])
            answers[group].append(answer)
            keep(
                Sample(
                    point=point,
                    split=split,
                    problem=problems[group].number,
                    sample=number,
                    text=response.text,
                    status=outcome.status,
                    score=outcome.score,
                    truncated=response.truncated,
                    in_format=answer.in_format,
                )
            )
        drawn[likeliest] = answers
    return point_record(
        [problem.number for problem in problems],
        drawn.get(False, [[] for _ in problems]),
        greedy=[one for (one,) in drawn[True]] if greedy else None,
        pass_k=workshop.recipe.evaluation.pass_k if samples else (),
    )


def in_format(pattern: str, rollout: Rollout) -> list[bool | None]:
    """Return of each response whether it is in the format that the recipe names; None takes the grader's word.

    What is right is in format whatever the expression says: an answer was read from it.
    """
    if not pattern:
        return [None] * len(rollout.responses)
    return [
        outcome.status == "right" or re.fullmatch(pattern, response.text.strip()) is not None
        for outcome, response in zip(rollout.outcomes, rollout.responses, strict=True)
    ]


def _responses(
    workshop: Workshop,
    policy: CausalPolicy,
    problems: Sequence[TextProblem],
    split: str,
    occasion: int,
    size: int,
    likeliest: bool,
) -> Rollout:
    rl = workshop.recipe.rl
    longest = rl.max_completion_length
    decoding = Decoding(rl.temperature, rl.top_k, rl.top_p, longest, workshop.codec.stop_tokens, greedy=likeliest)
    engine = workshop.engine(policy)
    engine.load((), 0)
    return roll_out(
        engine,
        workshop.codec,
        workshop.grader,
        problems,
        workshop.prompts[split][: len(problems)],
        decoding,
        size=size,
        seed=workshop.recipe.seed,
        step=occasion,
        version=0,
        stream=Stream.EVALUATION,
    )
