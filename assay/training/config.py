"""The recipe: every setting of a run, frozen before it starts, and the plan that follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from assay.training import sections
from assay.training.sections import MOST as MOST
from assay.training.sections import Count, NonNegative, Positive, Rate, Section, Seed
from assay.training.sections import read_settings as read_settings

Size = Annotated[int, Field(ge=1, le=4096)]


class TaskConfig(Section):
    """Which problems there are."""

    train_problems: Positive = 20
    """Training problems, drawn by the seed."""
    test_problems: Positive = 20
    """Test problems, disjoint from the training problems."""


class PolicyConfig(Section):
    """The tiny transformer."""

    width: Size = 16
    """Size of the residual stream."""
    heads: Size = 2
    """Attention heads; must divide the width."""
    feedforward: Size = 32
    """Hidden size of the feed-forward map."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> PolicyConfig:
        if self.width % self.heads:
            raise ValueError(f"width = {self.width} does not divide into {self.heads} heads; use a multiple")
        return self


class WarmupConfig(Section):
    """Supervised full-batch steps over all training problems."""

    steps: Count = 40
    """Steps, each over every training problem."""
    learning_rate: Rate = 0.006
    """AdamW learning rate."""
    weight_decay: NonNegative = 0.0
    """AdamW weight decay."""
    max_grad_norm: Rate = 1.0
    """Gradients are clipped to this norm."""


class RLConfig(Section):
    """On-policy steps on the verifier's reward."""

    estimator: Literal["rloo", "exact"] = "rloo"
    """rloo: sampled REINFORCE with a leave-one-out baseline. exact: the same gradient over all trajectories."""
    steps: Count = 100
    """Steps; every batch is used once."""
    learning_rate: Rate = 0.0015
    """AdamW learning rate; the optimizer is a fresh one."""
    weight_decay: NonNegative = 0.0
    """AdamW weight decay."""
    max_grad_norm: Rate = 1.0
    """Gradients are clipped to this norm."""
    problems_per_step: Positive = 5
    """Problems a step, in a fixed cycle; must divide the training problems."""
    num_generations: Count = 8
    """Responses a problem: at least 2 for rloo, and 0 for exact, which draws none."""
    beta: NonNegative = 0.03
    """Weight of KL(policy to reference) in the reward, in reward per nat."""

    @model_validator(mode="after")
    def _estimator_fits(self) -> RLConfig:
        if self.estimator == "rloo" and self.num_generations < 2:
            raise ValueError(
                f"num_generations = {self.num_generations}: leave-one-out needs a group of at least 2; "
                "use 2 or more (or estimator = 'exact', which needs no group)"
            )
        if self.problems_per_step * self.num_generations > MOST:
            raise ValueError(
                f"num_generations = {self.num_generations} for {self.problems_per_step} problems: more than {MOST} "
                "responses a step; use fewer"
            )
        if self.estimator == "exact" and self.num_generations:
            raise ValueError(
                f"num_generations = {self.num_generations} would do nothing: an exact step draws no responses; "
                "set it to 0"
            )
        return self


class EvaluationConfig(Section):
    """Evaluation under frozen weights, from a stream of its own."""

    samples: Positive = 1000
    """Independent samples at each of three points on each of two splits."""
    every: Positive = 5
    """RL steps between exact evaluations recorded along the way (they draw nothing)."""


class Recipe(Section):
    """Every setting of the seed experiment."""

    seed: Seed = 29
    """Names every random number of the run."""
    save_steps: Positive = 10
    """Steps between resumable checkpoints."""
    task: TaskConfig = TaskConfig()
    policy: PolicyConfig = PolicyConfig()
    warmup: WarmupConfig = WarmupConfig()
    rl: RLConfig = RLConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @model_validator(mode="after")
    def _batches_fit_the_cycle(self) -> Recipe:
        if self.task.train_problems % self.rl.problems_per_step:
            raise ValueError(
                f"rl.problems_per_step = {self.rl.problems_per_step} does not divide "
                f"task.train_problems = {self.task.train_problems}: batches would not fit the cycle; use a divisor"
            )
        return self

    def batch(self, step: int) -> list[int]:
        """Return the training problems of RL step ``step`` (from 0): the next ones of the fixed cycle."""
        first = step * self.rl.problems_per_step % self.task.train_problems
        return list(range(first, first + self.rl.problems_per_step))


@dataclass(frozen=True)
class Plan:
    """What a recipe will spend, known before it starts.

    Attributes:
        warmup_steps: supervised steps.
        rl_steps: on-policy steps.
        responses_per_step: training trajectories drawn each RL step.
        training_trajectories: drawn in all.
        visits_per_problem: times the cycle reaches a training problem, fewest and most.
        trajectories_per_problem: drawn for one training problem, fewest and most.
        evaluation_samples: drawn under frozen weights, counted apart.
    """

    warmup_steps: int
    rl_steps: int
    responses_per_step: int
    training_trajectories: int
    visits_per_problem: tuple[int, int]
    trajectories_per_problem: tuple[int, int]
    evaluation_samples: int


POINTS = ("init", "warmup", "rl")


def plan(recipe: Recipe) -> Plan:
    """Return the budget that a recipe fixes."""
    rl = recipe.rl
    per_step = rl.problems_per_step * rl.num_generations
    whole, rest = divmod(rl.steps * rl.problems_per_step, recipe.task.train_problems)
    visits = (whole, whole + bool(rest))
    return Plan(
        warmup_steps=recipe.warmup.steps,
        rl_steps=rl.steps,
        responses_per_step=per_step,
        training_trajectories=rl.steps * per_step,
        visits_per_problem=visits,
        trajectories_per_problem=(visits[0] * rl.num_generations, visits[1] * rl.num_generations),
        evaluation_samples=len(POINTS) * 2 * recipe.evaluation.samples,
    )


def build_recipe(settings: dict[str, Any], *, place: str) -> Recipe:
    """Turn plain settings into a recipe.

    Args:
        settings: nested settings; whatever is absent takes its default.
        place: where they come from, for the message.

    Raises:
        ConfigError: an unknown key (the nearest known one is suggested), a value out of range, a contradiction.
    """
    return sections.build(Recipe, settings, place=place)


def setting_names(model: type[BaseModel] = Recipe, prefix: str = "") -> list[str]:
    """Return every setting by its dotted name."""
    return sections.setting_names(model, prefix)
