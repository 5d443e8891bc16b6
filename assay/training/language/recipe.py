"""The recipe of a language run: every setting, frozen before it starts, and no two that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints, model_validator

from assay.core.estimator import Algorithm
from assay.core.settings import Settings
from assay.errors import ConfigError
from assay.training import sections
from assay.training.language.algorithm import corrects_sampler, estimator
from assay.training.language.options import (
    EvaluationOptions,
    GradingOptions,
    PolicyOptions,
    RLOptions,
    TaskOptions,
    TrackingOptions,
    WarmupOptions,
)
from assay.training.language.sources import located, mismatches
from assay.training.language.trl_names import INSTEAD
from assay.training.sections import MOST, Positive, Section, Seed

GAPS = {"float64": 1e-6, "float32": 0.01, "bfloat16": 1.0}
"""Largest difference of sampler and trainer that is taken for rounding, in nats, by the type that they compute in."""
VLLM_GAP = 1.0
"""The same for vLLM, whose kernels round differently."""

Text = Annotated[str, StringConstraints(min_length=1)]


class LanguageRecipe(Section):
    """Every setting of a language run."""

    model: Text
    """The model that is trained: package:NAME (one that a package ships), a directory, or ORGANISATION/NAME."""
    data: Text
    """The problems: a .jsonl, .csv or .parquet file, gym:NAME (reasoning-gym), or module:function."""
    reward: Text = "exact"
    """What grades a response: exact (the answer's text), maths (math-verify), gym (the dataset's own), or
    module:function."""
    lora: Annotated[int, Field(ge=0, le=4096)] = 0
    """Rank of the adapters that are trained in place of the model's own weights; 0: these."""
    seed: Seed = 29
    """Names every random number of the run."""
    save_steps: Positive = 10
    """Steps between resumable checkpoints."""
    policy: PolicyOptions = PolicyOptions()
    task: TaskOptions = TaskOptions()
    grading: GradingOptions = GradingOptions()
    warmup: WarmupOptions = WarmupOptions()
    rl: RLOptions = RLOptions()
    evaluation: EvaluationOptions = EvaluationOptions()
    tracking: TrackingOptions = TrackingOptions()

    @model_validator(mode="after")
    def _no_contradiction(self) -> LanguageRecipe:
        algorithm, _ = estimator(self.rl)
        found = [*mismatches(self.data, self.reward, self.task, self.grading), *self._sizes(), *self._idle(algorithm)]
        found += self._beyond_vllm()
        if found:
            raise ValueError("; ".join(found))
        return self

    def batch(self, step: int, problems: int) -> list[int]:
        """Return which training problems RL step ``step`` (from 0) takes: the next ones of a fixed cycle."""
        return _cycle(step, self.rl.problems_per_step, problems)

    def warmup_batch(self, step: int, problems: int) -> list[int]:
        """Return the same for a step of the warm-up, whose cycle is its own."""
        return _cycle(step, self.warmup.problems_per_step, problems)

    def _sizes(self) -> Iterator[str]:
        """Say which counts do not go together."""
        rl, policy, train = self.rl, self.policy, self.task.train_problems
        longest = policy.max_prompt_length + rl.max_completion_length
        if longest > policy.token_budget:
            parts = [f"rl.max_completion_length = {rl.max_completion_length}"]
            if policy.max_prompt_length:
                parts.append(f"policy.max_prompt_length = {policy.max_prompt_length}")
            yield (
                f"policy.token_budget = {policy.token_budget} does not hold one response, with {' and '.join(parts)}; "
                f"use {longest} or more"
            )
        if rl.problems_per_step * rl.num_generations > MOST:
            yield (
                f"rl.num_generations = {rl.num_generations} for {rl.problems_per_step} problems: more than {MOST} "
                "responses a step; use fewer"
            )
        if train:
            yield from self._too_few(train, f"task.train_problems = {train}")

    def _too_few(self, train: int, where: str) -> Iterator[str]:
        """Say which steps take more problems than there are."""
        for name, section in (("rl", self.rl), ("warmup", self.warmup)):
            if section.steps and section.problems_per_step > train:
                yield (
                    f"{name}.problems_per_step = {section.problems_per_step} is more than {where}, and a step takes no "
                    f"problem twice; use {train} or fewer"
                )

    def _beyond_vllm(self) -> Iterator[str]:
        """Say what the vllm engine cannot do here."""
        if self.policy.engine != "vllm":
            return
        if self.task.stop:
            yield (
                f"task.stop = {list(self.task.stop)}: under policy.engine = 'vllm' a response ends by a token alone; "
                "leave it out, or use engine = 'own'"
            )
        if self.lora:
            yield f"lora = {self.lora}: policy.engine = 'vllm' takes whole weights; use engine = 'own' or lora = 0"

    def _idle(self, algorithm: Algorithm) -> Iterator[str]:
        """Say which settings could do nothing."""
        rl, policy, evaluation, tracking = self.rl, self.policy, self.evaluation, self.tracking
        if policy.lora_alpha and not self.lora:
            yield f"policy.lora_alpha = {policy.lora_alpha:g} can do nothing while lora = 0; set lora to the rank"
        rounding_alone = policy.engine == "own" and policy.dtype != "bfloat16"
        for name in ("level", "weight_low", "weight_high"):
            if getattr(rl, name) is not None and rounding_alone and corrects_sampler(algorithm):
                yield (
                    f"rl.{name} = {getattr(rl, name)} can do nothing: the package's own sampler draws from the policy, "
                    f"up to the rounding of {policy.dtype}, so that what {algorithm.name} corrects for is 1; leave it "
                    "out, or set policy.engine = 'vllm' or policy.dtype = 'bfloat16'"
                )
        if rl.max_sampler_gap is not None and corrects_sampler(algorithm):
            yield (
                f"rl.max_sampler_gap = {rl.max_sampler_gap:g} can do nothing: {algorithm.name} weighs responses by the "
                "difference, whatever it is; leave it out"
            )
        if evaluation.every > rl.steps:
            yield f"evaluation.every = {evaluation.every} can do nothing in rl.steps = {rl.steps}; use fewer, or 0"
        if evaluation.controls and not rl.steps:
            yield f"evaluation.controls = {list(evaluation.controls)} can do nothing while rl.steps = 0; leave them out"
        if tracking.project != "assay" and not tracking.mirrors:
            yield f"tracking.project = {tracking.project!r} can do nothing without tracking.mirrors; name one"


def build_language_recipe(settings: Mapping[str, Any], *, place: str, base: Path) -> LanguageRecipe:
    """Turn plain settings into a recipe.

    Args:
        settings: nested settings; whatever is absent or None takes its default.
        place: where they come from, for the message.
        base: directory that the recipe's relative paths start from.

    Raises:
        ConfigError: an unknown key (what to write instead is said), a value out of range, a contradiction.
    """
    return sections.build(LanguageRecipe, located(_given(settings), base), place=place, elsewhere=INSTEAD)


def estimator_of(recipe: LanguageRecipe) -> tuple[Algorithm, Settings]:
    """Return the algorithm that a recipe names, and its settings under the core's names."""
    return estimator(recipe.rl)


def sampler_gap(recipe: LanguageRecipe) -> float:
    """Return the largest difference of sampler and trainer that a run accepts in a token's log-probability, in nats."""
    if recipe.rl.max_sampler_gap is not None:
        return recipe.rl.max_sampler_gap
    return VLLM_GAP if recipe.policy.engine == "vllm" else GAPS[recipe.policy.dtype]


def check_problems(recipe: LanguageRecipe, *, train: int, test: int) -> None:
    """Check a recipe against the problems that its data turned out to have.

    Args:
        recipe: the recipe.
        train: how many training problems there are.
        test: how many test problems.

    Raises:
        ConfigError: there are none of one kind, or fewer training problems than a step takes.
    """
    for kind, count, source in (("training", train, recipe.data), ("test", test, recipe.task.test_data or recipe.data)):
        if not count:
            raise ConfigError(f"{source}: no {kind} problem is left; add rows, or ask for fewer of the other kind")
    for found in recipe._too_few(train, f"the {train} training problems of {recipe.data}"):
        raise ConfigError(found)


def _cycle(step: int, each: int, problems: int) -> list[int]:
    return [(step * each + place) % problems for place in range(each)]


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Drop what is None, which TOML cannot say and a command line means by absent."""
    kept = {name: value for name, value in settings.items() if value is not None}
    return {name: _given(value) if isinstance(value, Mapping) else value for name, value in kept.items()}
