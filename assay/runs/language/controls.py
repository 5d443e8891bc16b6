"""Matched controls: what the same budget comes to without the reward's information, or without RL.

``random_reward``: RL on a coin. ``format_only``: RL on whether the response is in format. ``rejection``: supervised
steps on what the base model gets right by itself. Each begins with the base model, takes the warm-up that the run took,
and is measured on the same test problems.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from assay.core.streams import Stream, uniforms
from assay.policies.causal.model import CausalPolicy
from assay.runs.language.measure import in_format, measure
from assay.runs.language.samples import Sample
from assay.runs.language.workshop import Workshop, load_model
from assay.training.language.batch import Batch
from assay.training.language.loop import Hooks, run
from assay.training.language.rollout import Rollout
from assay.training.language.state import LanguageState, adamw, begin
from assay.training.language.steps import Workplace, drawn, scheduled
from assay.training.language.warmup import differentiate_likelihood
from assay.training.step import apply_gradients
from assay.types import Grader, Outcome, Response, TextProblem

COIN = 2**31
"""Added to the step in the address of a coin, so that no coin shares its number with a token."""


def controlled(workshop: Workshop, name: str, *, occasion: int, keep: Callable[[Sample], None]) -> dict[str, Any]:
    """Train a control and return its record on the test problems.

    Args:
        workshop: of the run.
        name: of the control.
        occasion: of the evaluation's random numbers.
        keep: receives every evaluated response, the point being the control's name.
    """
    recipe = workshop.recipe
    loaded = load_model(recipe)
    state = begin(loaded.policy, recipe.warmup, base=loaded.digest)
    graders: dict[str, Callable[[], Grader]] = {
        "random_reward": lambda: _Coin(recipe.seed),
        "format_only": lambda: _Format(workshop),
    }
    if name == "rejection":
        _warm_up(workshop, state)
        _imitate(workshop, state)
    else:
        run(state, _workplace(workshop, state.policy, graders[name]()), _SILENT)
    evaluation = recipe.evaluation
    return measure(
        workshop,
        state.policy,
        name,
        "test",
        occasion=occasion,
        samples=evaluation.samples,
        greedy=evaluation.greedy,
        keep=keep,
    )


_SILENT = Hooks(emit=lambda record, seconds: None, save=lambda state: None)


class _Coin:
    """Scores each response by a fair coin of its own address."""

    def __init__(self, seed: int) -> None:
        self._seed, self._calls = seed, 0

    def __call__(self, problems: Sequence[TextProblem], responses: Sequence[Response], /) -> list[Outcome]:
        numbers = [problem.number for problem in problems]
        rows = list(range(len(problems)))
        drawn = uniforms(self._seed, Stream.ROLLOUT, 1, step=COIN + self._calls, problem=numbers, sample=rows)[:, 0]
        self._calls += 1
        return [Outcome(1.0, "right") if up else Outcome(0.0, "wrong") for up in (drawn < 0.5).tolist()]


class _Format:
    """Scores each response by whether it is in format, as the run's own grader or expression has it."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    def __call__(self, problems: Sequence[TextProblem], responses: Sequence[Response], /) -> list[Outcome]:
        outcomes = self._workshop.grader(problems, responses)
        shown = Rollout((), Batch((), (), ()), (), tuple(responses), tuple(outcomes))
        fits = in_format(self._workshop.recipe.grading.format, shown)
        words = [outcome.status in ("right", "wrong") for outcome in outcomes]
        return [
            Outcome(1.0, "right") if (word if fit is None else fit) else Outcome(0.0, "wrong")
            for fit, word in zip(fits, words, strict=True)
        ]


def _workplace(workshop: Workshop, policy: CausalPolicy, grader: Grader) -> Workplace:
    train = workshop.problems["train"], workshop.prompts["train"]
    return Workplace(workshop.recipe, *train, workshop.codec, workshop.engine(policy), grader)


def _warm_up(workshop: Workshop, state: LanguageState) -> None:
    """Take the run's own warm-up, and stop where its RL would begin."""
    recipe = workshop.recipe
    short = recipe.model_copy(update={"rl": recipe.rl.model_copy(update={"steps": 0})})
    run(state, replace(_workplace(workshop, state.policy, workshop.grader), recipe=short), _SILENT)


def _imitate(workshop: Workshop, state: LanguageState) -> None:
    """Draw as many responses as RL does, all from the policy before it, and learn those that are right.

    Each step is supervised on the right responses to the problems that RL's step of the same number reads, at RL's
    learning rate; a step without any is left out.
    """
    recipe, rl = workshop.recipe, workshop.recipe.rl
    work = _workplace(workshop, state.policy, workshop.grader)
    kept = [_right(drawn(state, work, step=step)) for step in range(rl.steps)]
    state.optimizer = adamw(state.policy, rl)
    for step, batch in enumerate(kept):
        if not batch.responses:
            continue
        for group in state.optimizer.param_groups:
            group["lr"] = scheduled(rl.lr_scheduler_type, rl.learning_rate, step=step, steps=rl.steps)
        state.optimizer.zero_grad(set_to_none=True)
        differentiate_likelihood(state.policy, batch, budget=recipe.policy.token_budget)
        place = f"rejection control, step {step + 1}"
        apply_gradients(state.policy.trained(), state.optimizer, max_grad_norm=rl.max_grad_norm, place=place)


def _right(rollout: Rollout) -> Batch:
    """Return the right responses of a rollout as a batch of their own."""
    rows = [row for row, outcome in enumerate(rollout.outcomes) if outcome.status == "right"]
    groups = sorted({rollout.batch.group[row] for row in rows})
    return Batch(
        tuple(rollout.batch.prompts[group] for group in groups),
        tuple(rollout.drawn[row].tokens for row in rows),
        tuple(groups.index(rollout.batch.group[row]) for row in rows),
    )
