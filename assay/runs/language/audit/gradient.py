"""I1: what a step hands to the optimizer, on average over all groups that could be drawn."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch

from assay.audit.adapters.own import subject
from assay.audit.call import Group
from assay.audit.check import Check, answers, could_not_run, verdict_of
from assay.audit.expectation import Design, expected_ascent
from assay.audit.gradients import Prompted, next_logits
from assay.audit.loss_report import describe
from assay.audit.trainers import TrainerReport, trainer
from assay.core.estimands import objective
from assay.runs.language.audit.bench import (
    NO_CLIPPING,
    Bench,
    bench,
    drawn,
    gradient_gap,
    possible,
    prompted,
    worst,
)
from assay.runs.language.audit.miniature import Miniature, with_policy, with_rl
from assay.runs.language.audit.stand_ins import Gradient
from assay.training.language.recipe import LanguageRecipe, estimator_of
from assay.tree.world import TreeProblem, by_problem

MOST = 800
"""Most batches of groups to run."""
PAIR = 2
"""Responses in a group where two problems are run together, for every pair of groups is run."""


def least(recipe: LanguageRecipe) -> int:
    """Return the fewest responses in a group that a recipe's algorithm can use."""
    algorithm, settings = estimator_of(recipe)
    return max(2, algorithm.least, settings.k if "k" in algorithm.live else 0)


def expected_updates(miniature: Miniature, *, most: int = MOST) -> list[Check]:
    """Return I1 for batches of both problems, and for larger groups of one.

    Every batch of groups is run through the recipe's step, cut into parts by a small budget of tokens.

    Args:
        miniature: the small model.
        most: batches to run; groups are made smaller until there are no more.
    """
    recipe, wanted = miniature.recipe, miniature.original.rl.num_generations
    responses = len(prompted(bench(miniature, script=True, only=1))[0].problem.reward)
    made, size = [], max(PAIR, least(recipe))
    if math.comb(responses + size - 1, size) ** 2 <= most:
        pair = bench(miniature, _counting(recipe, size, budget=5), script=True)
        made += _expected_update(pair, size, f"two problems, groups of {size}")
    size = largest_group(wanted, responses, least=least(recipe), most=most)
    alone = bench(miniature, _counting(recipe, size, budget=3 + size // 2), script=True, only=1)
    cut = f" in place of the recipe's {wanted}" if size < wanted else ""
    return [*made, *_expected_update(alone, size, f"one problem, groups of {size}{cut}")]


def largest_group(wanted: int, responses: int, *, least: int, most: int) -> int:
    """Return the size of group, up to the wanted one, of which there are no more multisets than ``most``.

    Args:
        wanted: the recipe's.
        responses: that there are to a problem.
        least: that the algorithm needs; taken even where there are more multisets.
        most: multisets to run.
    """
    fits = (size for size in range(wanted, least, -1) if math.comb(responses + size - 1, size) <= most)
    return next(fits, least)


def _counting(recipe: LanguageRecipe, size: int, *, budget: int) -> LanguageRecipe:
    """Return a recipe with groups of one size, a budget that splits them, and no clipping of the norm."""
    passes = min(recipe.rl.num_iterations, 2)
    made = with_rl(recipe, num_generations=size, max_grad_norm=NO_CLIPPING, num_iterations=passes)
    return with_policy(made, token_budget=budget)


def _expected_update(made: Bench, size: int, where: str) -> list[Check]:
    """Run every batch of groups, and compare the average with the declared objective, or with the core's own."""
    problems, tolerance, why = prompted(made), made.miniature.tolerance, made.miniature.why
    stated = declared(made.recipe, size)

    def step(groups: Sequence[Group]) -> Gradient:
        if not all(possible(problems[number].problem, members.tolist()) for number, members in groups):
            return {}
        return made.of_groups([drawn(problems[number].problem, members.tolist()) for number, members in groups])

    report = trainer(
        step, made.plain, problems, objective=stated or "reward", group_size=size, tolerance=tolerance, why=why
    )
    check = dataclasses.replace(report.check, detail=f"{where}: {report.check.detail}")
    if stated is not None or not report.ascent:
        return [check]
    algorithm, _ = estimator_of(made.recipe)
    ascends = describe(report.ascends) if report.ascends else "nothing"
    undeclared = f"{where}: {algorithm.name} declares no objective in closed form here; found: {ascends}"
    return [could_not_run("I1", undeclared), _against_core(made, problems, report, size, where)]


def declared(recipe: LanguageRecipe, size: int) -> str | None:
    """Return the objective that a recipe declares for groups of one size, or None where it has none in closed form.

    A response that leaves its group by its length changes what is ascended. A KL to the reference in the other
    direction is infinite where tokens are left out.
    """
    algorithm, settings = estimator_of(recipe)
    made = objective(algorithm, settings, group_size=size)
    cut = recipe.rl.top_k or recipe.rl.top_p < 1
    if made is None or recipe.rl.mask_truncated_completions or (cut and "forward_kl" in made):
        return None
    return made


@answers("I1")
def _against_core(made: Bench, problems: Sequence[Prompted], report: TrainerReport, size: int, where: str) -> Check:
    """Compare what was run with the expectation of the core's loss, enumerated at the boundary of log-probabilities."""
    algorithm, settings = estimator_of(made.recipe)
    own = {name: getattr(settings, name) for name in algorithm.reads}
    given = {name: str(value) for name, value in own.items() if value != getattr(algorithm.defaults, name)}
    world = tuple(_without_truncated(made, place.problem) for place in problems)
    design = Design((size,) * len(world), prompts=len(world))
    ascent = expected_ascent(subject(algorithm, given).loss, world, design).ascent
    named = dict(made.plain.named_parameters())
    live = [next_logits(made.plain, place.prompt, place.problem.tree).flatten() for place in problems]
    total = torch.stack([a @ b for a, b in zip(live, by_problem(ascent, world), strict=True)]).sum()
    parts = torch.autograd.grad(total, list(named.values()), allow_unused=True, materialize_grads=True)
    expected = dict(zip(named, parts, strict=True))
    error = gradient_gap(dict(report.ascent), expected)
    tolerance = made.miniature.tolerance
    return verdict_of(
        "I1",
        f"{where}: expected update of the step against the same of {algorithm.name}'s loss alone, through Transformers",
        [worst(dict(report.ascent), expected)] if not error <= tolerance else [],
        error=error,
        tolerance=tolerance,
        why=made.miniature.why,
        exactness=report.check.exactness,
    )


def _without_truncated(made: Bench, problem: TreeProblem) -> TreeProblem:
    if not made.recipe.rl.mask_truncated_completions:
        return problem
    return dataclasses.replace(problem, reward=problem.reward.masked_fill(problem.tree.truncated, float("nan")))
