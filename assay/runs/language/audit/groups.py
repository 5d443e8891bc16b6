"""I4: what a group means to a step: no order, nothing from a constant one, nothing of a response without a score."""

from __future__ import annotations

from collections.abc import Sequence

from assay.audit.check import Check, answers, verdict_of
from assay.audit.gradients import Prompted
from assay.policies.engines import Drawn
from assay.runs.language.audit.bench import Bench, Gradient, Score, bench, drawn, gradient_gap, prompted, reward, worst
from assay.runs.language.audit.gradient import least
from assay.runs.language.audit.miniature import Miniature, with_rl
from assay.runs.language.audit.partition import unclipped
from assay.training.language.recipe import LanguageRecipe, estimator_of
from assay.types import Response, TextProblem

LARGEST = 8
"""Most responses in a group here."""
WITHOUT_BASELINE = ("reinforce", "reinforce_pp", "reinforce_pp_baseline")
"""Algorithms in which equal rewards of a group leave something: no baseline, or one of the whole batch on top."""


@answers("I4")
def group_semantics(miniature: Miniature) -> Check:
    """Permute groups, make them constant, and take scores away, each through the recipe's own step."""
    needed = least(miniature.recipe) + 2
    size = max(min(miniature.recipe.rl.num_generations, LARGEST), needed)
    recipe = with_rl(unclipped(miniature.recipe), num_generations=size, num_iterations=_passes(miniature.recipe))
    made = bench(miniature, recipe, script=True)
    problems = prompted(made)
    groups = [_varied(place, size, number) for number, place in enumerate(problems)]
    first = made.of_groups(groups)
    turned = made.of_groups([[*group[1:], group[0]][::-1] for group in groups])
    error = gradient_gap(turned, first)
    findings = [f"responses of each group in another order: {worst(turned, first)}"] if error > miniature.tolerance else []
    found, gap = _unscorable(made, groups)
    findings += [*found, *_constant(miniature, recipe, problems, groups)]
    algorithm, _ = estimator_of(recipe)
    constant = ""
    if algorithm.name not in WITHOUT_BASELINE:
        constant = ", a constant group has an advantage of exactly zero"
    return verdict_of(
        "I4",
        f"the order of a group does not matter{constant}, and a response without a score leaves its group as if it had "
        "not been drawn",
        findings,
        error=max(error, gap),
        tolerance=miniature.tolerance,
        why=miniature.why,
        exactness=f"groups of {size}",
    )


def _passes(recipe: LanguageRecipe) -> int:
    return min(recipe.rl.num_iterations, 2)


def _varied(place: Prompted, size: int, number: int) -> list[Drawn]:
    """Return different responses, of different lengths and rewards."""
    there = place.problem.drawn.tolist()
    return drawn(place.problem, [there[(3 * member + number) % len(there)] for member in range(size)])


def _unscorable(made: Bench, groups: list[list[Drawn]]) -> tuple[list[str], float]:
    """Take the score of two responses to the first problem away, and compare with the batch without them."""
    lost = {groups[0][0].tokens, groups[0][1].tokens}
    number = made.work.problems[0].number

    def score(problem: TextProblem, response: Response) -> float | None:
        return None if problem.number == number and response.tokens in lost else reward(problem, response)

    other = bench(made.miniature, made.recipe, script=True, score=score)
    with_them = other.of_groups(groups)
    without = other.of_groups([[one for one in groups[0] if one.tokens not in lost], groups[1]])
    gap = gradient_gap(with_them, without)
    if gap <= made.miniature.tolerance:
        return [], gap
    where = worst(with_them, without) if with_them and without else "one of them is no step at all"
    return [f"responses {sorted(lost)} without a score, against the batch without them: {where}"], gap


def _constant(
    miniature: Miniature, recipe: LanguageRecipe, problems: Sequence[Prompted], groups: list[list[Drawn]]
) -> list[str]:
    """Say where groups of one reward have a gradient of their own."""
    algorithm, settings = estimator_of(recipe)
    if algorithm.name in WITHOUT_BASELINE:
        return []
    ended = [next(one for one in group if not one.truncated) for group in groups]
    cases = {"one response over and over": [[one] * recipe.rl.num_generations for one in ended]}
    if settings.kl not in ("reward", "reward_to_go") and not settings.overlong_length:
        cases["different responses of one reward"] = groups
    silent = settings.kl in ("none", "reward") and not settings.entropy
    findings = []
    for name, members in cases.items():
        low, high = (_with_score(miniature, recipe, members, value) for value in (0.0, 1.0))
        if silent and (low or high):
            findings.append(f"{name}: the optimizer steps, where nothing can have a gradient")
        elif low.keys() != high.keys() or any(not bool((low[key] == high[key]).all()) for key in low):
            findings.append(f"{name}: the gradient depends on what that reward is")
    return findings


def _with_score(miniature: Miniature, recipe: LanguageRecipe, groups: list[list[Drawn]], value: float) -> Gradient:
    score: Score = lambda problem, response: value  # noqa: E731
    return bench(miniature, recipe, script=True, score=score).of_groups(groups)
