"""What a language run will do and what that ascends, in plain lines for people and as a record."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from assay.core.estimands import estimand, objective
from assay.core.estimator import Algorithm
from assay.core.settings import Settings
from assay.training.language.algorithm import corrects_sampler, settings_read, why_no_penalty
from assay.training.language.plan import LanguagePlan, plan
from assay.training.language.recipe import LanguageRecipe, estimator_of, sampler_gap


def plan_record(recipe: LanguageRecipe, *, train: int, test: int) -> dict[str, Any]:
    """Return the plan, and what is ascended under which settings, as a run's results hold it."""
    algorithm, settings = estimator_of(recipe)
    return {
        **asdict(plan(recipe, train=train, test=test)),
        "algorithm": algorithm.name,
        "settings": settings_read(algorithm, settings),
        "estimand": estimand(algorithm, settings),
        "objective": objective(algorithm, settings, group_size=recipe.rl.num_generations),
        "advice": advice(recipe, train=train, test=test),
    }


def plan_lines(recipe: LanguageRecipe, *, train: int, test: int) -> list[tuple[str, str]]:
    """Return the plan in lines for people: what each is about, and what it says."""
    budget, rl = plan(recipe, train=train, test=test), recipe.rl
    lines = [("problems", f"{train:,} training, {test:,} test"), ("warm-up", _warmup(recipe, budget))]
    if rl.steps:
        algorithm, settings = estimator_of(recipe)
        read = settings_read(algorithm, settings)
        lines += [
            ("RL", _rl(recipe, budget)),
            ("algorithm", f"{algorithm.name} ({algorithm.source})"),
            ("settings", ", ".join(f"{name} {_written(value)}" for name, value in read.items())),
            ("ascends", estimand(algorithm, settings)),
            ("objective", _objective(recipe, algorithm, settings)),
            ("KL", _kl(recipe, algorithm, settings)),
            ("policy", _policy(recipe)),
            ("truncated", _truncated(recipe, algorithm)),
            ("applied", _applied(recipe)),
        ]
    return [*lines, ("evaluation", _evaluation(recipe, budget))]


def advice(recipe: LanguageRecipe, *, train: int, test: int) -> list[str]:
    """Return what a reader of the plan may want to change, or had better know; empty where there is nothing."""
    rl, budget = recipe.rl, plan(recipe, train=train, test=test)
    algorithm, settings = estimator_of(recipe)
    made = []
    if rl.steps and not budget.visits_per_problem[0]:
        seen = rl.steps * rl.problems_per_step
        made.append(f"{train - seen:,} of {train:,} training problems never come up; more steps would reach them.")
    if rl.steps and rl.num_iterations == 1 and "clip_low" in algorithm.live:
        made.append(f"{algorithm.name}'s clip never acts: each batch is used for one update, where every ratio is 1.")
    if recipe.policy.engine == "vllm" and not corrects_sampler(algorithm):
        made.append(
            f"vllm's log-probabilities are not the trainer's, and {algorithm.name} does not correct for that: up to "
            f"{sampler_gap(recipe):g} nats a token are let pass. tis and mis correct in part, sequence_is in full."
        )
    if recipe.lora and recipe.warmup.steps and settings.beta:
        made.append(
            "The reference is the model without its adapters, so that the KL pulls back what the warm-up taught."
        )
    wide = 1.96 * math.sqrt(0.25 / test)
    if wide > 0.05:
        made.append(
            f"With {test} test problems a success rate is known to {100 * wide:.0f} points at worst (95 %, one "
            "response each); comparisons on the same problems are sharper."
        )
    return made


def _warmup(recipe: LanguageRecipe, budget: LanguagePlan) -> str:
    if not budget.warmup_steps:
        return "none: RL starts from the model as it was loaded"
    return (
        f"{budget.warmup_steps:,} supervised steps of {recipe.warmup.problems_per_step} problems, learning rate "
        f"{recipe.warmup.learning_rate:g}"
    )


def _rl(recipe: LanguageRecipe, budget: LanguagePlan) -> str:
    rl = recipe.rl
    few, most = budget.visits_per_problem
    updates = f", {rl.num_iterations} updates on each" if rl.num_iterations > 1 else ""
    return (
        f"{rl.steps:,} steps of {rl.problems_per_step} problems x {rl.num_generations} responses{updates} = "
        f"{budget.responses:,} responses of up to {rl.max_completion_length:,} tokens; "
        f"{few if few == most else f'{few} to {most}'} visits a problem; learning rate {rl.learning_rate:g}, "
        f"{rl.lr_scheduler_type}"
    )


def _objective(recipe: LanguageRecipe, algorithm: Algorithm, settings: Settings) -> str:
    written = objective(algorithm, settings, group_size=recipe.rl.num_generations)
    mean = f"mean over the step's {recipe.rl.problems_per_step} problems"
    if written is None:
        return f"none whose gradient it is in closed form; {mean}"
    return f"{mean} of {written}"


def _kl(recipe: LanguageRecipe, algorithm: Algorithm, settings: Settings) -> str:
    if settings.kl != "none":
        chosen = " by default" if recipe.rl.beta is None else ""
        reference = "the model without its adapters" if recipe.lora else "the policy before RL, frozen"
        return f"beta {settings.beta:g}{chosen}, enters as {settings.kl}; the reference is {reference}"
    why = why_no_penalty(recipe.rl, algorithm) if recipe.rl.kl is None and recipe.rl.beta is None else None
    return "no penalty" + (f" by default: {why}" if why else "")


def _policy(recipe: LanguageRecipe) -> str:
    rl = recipe.rl
    cuts = [f"top-k {rl.top_k}"] * bool(rl.top_k) + [f"top-p {rl.top_p:g}"] * (rl.top_p < 1)
    what = f"the policy that is trained is the model at temperature {rl.temperature:g}"
    if cuts:
        what += (
            f", cut to {' and '.join(cuts)}; the cut is held fixed in the gradient, so that what moves a token across "
            "it is not seen"
        )
    return f"{what}; responses come from {'vllm' if recipe.policy.engine == 'vllm' else 'it'}"


def _truncated(recipe: LanguageRecipe, algorithm: Algorithm) -> str:
    longest = f"a response without an end after {recipe.rl.max_completion_length:,} tokens"
    if not recipe.rl.mask_truncated_completions:
        return f"{longest} is graded as it stands, like any other"
    also = " (without a group's baseline, ending itself is moved as well)" if algorithm.least == 1 else ""
    return (
        f"{longest} leaves its group: what is ascended is that of the policy given that its response ends, and nothing "
        f"works against being cut off{also}"
    )


def _applied(recipe: LanguageRecipe) -> str:
    rl = recipe.rl
    decay = f" and shrinks each weight by {rl.weight_decay:g} times the rate" if rl.weight_decay else ""
    later = f"; updates 2 to {rl.num_iterations} of a batch are off-policy" if rl.num_iterations > 1 else ""
    return (
        f"the step is not the gradient: its norm is clipped to {rl.max_grad_norm:g}, and AdamW divides every "
        f"coordinate by its own recent size{decay}{later}"
    )


def _evaluation(recipe: LanguageRecipe, budget: LanguagePlan) -> str:
    parts = [f"{budget.evaluation_responses:,} sampled"]
    parts += [f"{budget.greedy_responses:,} greedy"] * bool(budget.greedy_responses)
    parts += [f"{budget.greedy_on_the_way:,} greedy between steps"] * bool(budget.greedy_on_the_way)
    made = f"{', '.join(parts)} responses under frozen weights at {', '.join(budget.points)}, counted apart"
    if budget.bound_passes:
        made += f"; up to {budget.bound_passes:,} forward passes for bounds"
    if budget.controls:
        made += f"; {', '.join(recipe.evaluation.controls)}: the same budget again for each"
    return made


def _written(value: float | int | bool | str) -> str:
    return value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else f"{value:g}"
