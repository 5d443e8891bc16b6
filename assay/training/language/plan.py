"""What a language run will spend, known before anything is drawn."""

from __future__ import annotations

from dataclasses import dataclass

from assay.training.language.recipe import LanguageRecipe


@dataclass(frozen=True)
class LanguagePlan:
    """What a recipe will spend, once it is known how many problems there are.

    Attributes:
        train_problems: training problems.
        test_problems: test problems.
        points: the weights that are measured: ``base``, ``warmup`` and ``rl``, those that there are.
        warmup_steps: supervised steps.
        warmup_examples: prompts with their answers that these take, in all.
        rl_steps: batches of responses.
        optimizer_steps: updates on them.
        responses_per_step: drawn for each batch.
        responses: drawn for training in all.
        tokens_per_step: the most that the responses of a batch can have.
        visits_per_problem: how often the cycle reaches a training problem, fewest and most.
        evaluation_responses: sampled under frozen weights, on both splits at every point.
        greedy_responses: likewise, of the likeliest tokens.
        greedy_on_the_way: greedy responses to test problems between the steps.
        bound_passes: the most forward passes that certified bounds take.
        controls: further runs of the same budget.
    """

    train_problems: int
    test_problems: int
    points: tuple[str, ...]
    warmup_steps: int
    warmup_examples: int
    rl_steps: int
    optimizer_steps: int
    responses_per_step: int
    responses: int
    tokens_per_step: int
    visits_per_problem: tuple[int, int]
    evaluation_responses: int
    greedy_responses: int
    greedy_on_the_way: int
    bound_passes: int
    controls: int


def points(recipe: LanguageRecipe) -> tuple[str, ...]:
    """Return the weights that a run measures, in their order."""
    there = {"base": True, "warmup": bool(recipe.warmup.steps), "rl": bool(recipe.rl.steps)}
    return tuple(name for name, is_there in there.items() if is_there)


def measured_training(train: int, test: int) -> int:
    """Return how many training problems are measured beside the test problems: as many, where there are."""
    return min(train, test)


def plan(recipe: LanguageRecipe, *, train: int, test: int) -> LanguagePlan:
    """Return the budget of a recipe with so many training and test problems."""
    rl, evaluation, measured = recipe.rl, recipe.evaluation, points(recipe)
    measured_problems = test + measured_training(train, test)
    per_step = rl.problems_per_step * rl.num_generations
    whole, rest = divmod(rl.steps * rl.problems_per_step, train)
    return LanguagePlan(
        train_problems=train,
        test_problems=test,
        points=measured,
        warmup_steps=recipe.warmup.steps,
        warmup_examples=recipe.warmup.steps * recipe.warmup.problems_per_step,
        rl_steps=rl.steps,
        optimizer_steps=rl.steps * rl.num_iterations,
        responses_per_step=per_step,
        responses=rl.steps * per_step,
        tokens_per_step=per_step * rl.max_completion_length,
        visits_per_problem=(whole, whole + bool(rest)),
        evaluation_responses=len(measured) * measured_problems * evaluation.samples,
        greedy_responses=len(measured) * measured_problems if evaluation.greedy else 0,
        greedy_on_the_way=rl.steps // evaluation.every * test if evaluation.every else 0,
        bound_passes=len(measured) * test * evaluation.bounds,
        controls=len(evaluation.controls),
    )
