"""I4: what a group means to a step: no order, nothing from a constant one, nothing of a response without a score."""

from __future__ import annotations

from assay.audit.check import Check, verdict_of
from assay.audit.gradients import Prompted
from assay.errors import AssayError
from assay.policies.engines import Drawn
from assay.runs.language.audit.batching import unclipped
from assay.runs.language.audit.bench import (
    Bench,
    bench,
    drawn,
    gradient_gap,
    norm,
    prompted,
    worst,
)
from assay.runs.language.audit.gradient import least
from assay.runs.language.audit.miniature import Miniature, with_rl
from assay.runs.language.audit.stand_ins import Gradient, Score, reward
from assay.training.language.recipe import LanguageRecipe, estimator_of
from assay.types import Response, TextProblem

LARGEST = 8
"""Most responses in a group here."""
WITHOUT_BASELINE = ("reinforce", "reinforce_pp", "reinforce_pp_baseline")
"""Algorithms in which equal rewards of a group leave something: no baseline, or one of the whole batch on top."""


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
    findings = (
        [f"responses of each group in another order: {worst(turned, first)}"] if error > miniature.tolerance else []
    )
    found, gap = _unscorable(made, groups, norm(first))
    few, further = _too_few(made, groups, norm(first))
    cases = _constant_groups(recipe, groups)
    findings += [*found, *few, *_constant(miniature, recipe, cases, norm(first))]
    rounded = " up to rounding, the KL being in the return" if estimator_of(recipe)[1].kl == "reward" else ", exactly"
    constant = f"; a constant group ({' or '.join(cases)}) moves nothing by its reward{rounded}" if cases else ""
    return verdict_of(
        "I4",
        f"the order of a group does not matter{constant}; a response without a score leaves its group as if it had "
        "not been drawn; a group with too few scores leaves the batch",
        findings,
        error=max(error, gap, further),
        tolerance=miniature.tolerance,
        why=miniature.why,
        exactness=f"groups of {size}",
    )


def _passes(recipe: LanguageRecipe) -> int:
    return min(recipe.rl.num_iterations, 2)


def _varied(place: Prompted, size: int, number: int) -> list[Drawn]:
    """Return different responses, of different lengths and rewards."""
    there = place.problem.drawn.tolist()
    return drawn(place.problem, [there[(member + number) % len(there)] for member in range(size)])


def _unscorable(made: Bench, groups: list[list[Drawn]], scale: float) -> tuple[list[str], float]:
    """Take the score of two responses to the first problem away, and compare with the batch without them."""
    lost = {groups[0][0].tokens, groups[0][1].tokens}
    number = made.work.problems[0].number

    def score(problem: TextProblem, response: Response) -> float | None:
        return None if problem.number == number and response.tokens in lost else reward(problem, response)

    other = bench(made.miniature, made.recipe, script=True, score=score)
    with_them = other.of_groups(groups)
    without = other.of_groups([[one for one in groups[0] if one.tokens not in lost], groups[1]])
    gap = gradient_gap(with_them, without, scale=scale)
    if gap <= made.miniature.tolerance:
        return [], gap
    where = worst(with_them, without) if with_them and without else "one of them is no step at all"
    return [f"responses {sorted(lost)} without a score, against the batch without them: {where}"], gap


def _too_few(made: Bench, groups: list[list[Drawn]], scale: float) -> tuple[list[str], float]:
    """Leave one score too few in the first group, and compare with the batch without that group."""
    algorithm, settings = estimator_of(made.recipe)
    left = max(algorithm.least, settings.k if "k" in algorithm.live else 0) - 1
    number, met = made.work.problems[0].number, 0

    def score(problem: TextProblem, response: Response) -> float | None:
        nonlocal met
        met += problem.number == number
        return None if problem.number == number and met > left else reward(problem, response)

    try:
        fewer = bench(made.miniature, made.recipe, script=True, score=score).of_groups(groups)
    except AssayError as error:
        return [f"a group with {left} scores stops the run: {error}"], 0.0
    without = bench(made.miniature, made.recipe, script=True, only=1).of_groups(groups[1:])
    gap = gradient_gap(fewer, without, scale=scale)
    found = f"a group with {left} scores is not out of the batch: its gradient is off by {gap:.3g} of that without it"
    return ([] if gap <= made.miniature.tolerance else [found]), gap


def _constant_groups(recipe: LanguageRecipe, groups: list[list[Drawn]]) -> dict[str, list[list[Drawn]]]:
    """Return batches whose groups have one return each, where the algorithm has a baseline of the group."""
    algorithm, settings = estimator_of(recipe)
    if algorithm.name in WITHOUT_BASELINE:
        return {}
    ended = [next((one for one in group if not one.truncated), group[0]) for group in groups]
    cases = {"one response over and over": [[one] * recipe.rl.num_generations for one in ended]}
    if settings.kl != "reward" and not settings.overlong_length:
        cases["different responses of one reward"] = groups
    return cases


def _constant(
    miniature: Miniature, recipe: LanguageRecipe, cases: dict[str, list[list[Drawn]]], scale: float
) -> list[str]:
    """Say where groups of one reward have a gradient of their own.

    With the KL in the reward, equal responses have equal returns up to the rounding of their scores; without it a
    single bit is too much.
    """
    _, settings = estimator_of(recipe)
    silent = settings.kl in ("none", "reward") and not settings.entropy
    allowed = miniature.tolerance * scale if settings.kl == "reward" else 0.0
    findings = []
    for name, members in cases.items():
        low, high = (_with_score(miniature, recipe, members, value) for value in (0.0, 1.0))
        if silent and max(norm(low), norm(high)) > allowed:
            findings.append(
                f"{name}: a gradient of norm {max(norm(low), norm(high)):.3g}, where there is nothing to learn"
            )
        elif not silent and gradient_gap(low, high):
            findings.append(f"{name}: the gradient depends on what that reward is")
    return findings


def _with_score(miniature: Miniature, recipe: LanguageRecipe, groups: list[list[Drawn]], value: float) -> Gradient:
    score: Score = lambda problem, response: value  # noqa: E731
    return bench(miniature, recipe, script=True, score=score).of_groups(groups)
