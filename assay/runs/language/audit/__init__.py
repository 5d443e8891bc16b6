"""The audit of a run: its own sampler, batch, update and accumulation, on a model small enough to enumerate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from assay.audit.check import Check, SubjectError, could_not_run, foreign
from assay.core.estimands import estimand
from assay.errors import AssayError, ConfigError
from assay.evidence.files import read_toml
from assay.runs.language.audit.batching import partition
from assay.runs.language.audit.bench import telling
from assay.runs.language.audit.gradient import MOST, expected_updates
from assay.runs.language.audit.groups import group_semantics
from assay.runs.language.audit.masking import masked
from assay.runs.language.audit.miniature import LENGTH, Miniature, build
from assay.runs.language.audit.options import liveness
from assay.runs.language.audit.restart import fixed_points, resume
from assay.runs.language.audit.sampler import sampler_and_scorer, seeds
from assay.runs.language.audit.small import TOKENS, family_of
from assay.runs.language.audit.staleness import freshness
from assay.runs.language.layout import Layout
from assay.threads import one_thread
from assay.training.language.recipe import LanguageRecipe, build_language_recipe, estimator_of
from assay.verdicts import Claim, overall

CHECKS: dict[str, Callable[[Miniature], Check]] = {
    "I2": partition,
    "I3": masked,
    "I4": group_semantics,
    "I5": liveness,
    "I6": fixed_points,
    "I7": freshness,
    "I8": sampler_and_scorer,
    "I11": resume,
    "I12": seeds,
}
"""What is asked after the expected update, by invariant."""

SEEDS = 8
"""Random weights that are tried."""


def audit_run(place: Path) -> tuple[dict[str, Any], list[Claim], list[str]]:
    """Audit the recipe of a run directory; nothing but its settings and the shape of its model is read.

    Returns:
        A record of plain values, the claims, and what is to be known about them in lines.

    Raises:
        RunError, EvidenceError: there is no run.
        ConfigError: it is not the run of a language model, has no RL in it, or its model's config cannot be read.
    """
    layout = Layout(place)
    settings = read_toml(layout.config)
    if "model" not in settings:
        raise ConfigError(
            f"{place}: not the run of a language model; the seed experiment is audited with: assay audit seed"
        )
    recipe = build_language_recipe(settings, place=str(layout.config), base=place.resolve())
    return audit_recipe(recipe, family_of(recipe, layout.model))


def audit_recipe(
    recipe: LanguageRecipe, family: Mapping[str, Any], *, most: int = MOST
) -> tuple[dict[str, Any], list[Claim], list[str]]:
    """Audit a recipe on a small model of a family.

    Args:
        recipe: every setting.
        family: config of a model of that family, as in its ``config.json``.
        most: batches of groups to run for the expected update.

    Raises:
        ConfigError: the recipe has no RL in it.
    """
    if not recipe.rl.steps:
        raise ConfigError("rl.steps = 0: there is no RL in this run to be audited")
    with one_thread(), TemporaryDirectory() as place:
        try:
            miniature = telling_miniature(recipe, family, Path(place))
        except (SubjectError, AssayError) as error:
            kind = family.get("model_type")
            claims: list[Claim] = [could_not_run("I1", f"no small model of type {kind}: {error}")]
            return {"verdict": overall(claims), "claims": [asdict(claim) for claim in claims]}, claims, []
        checks = [*_updates(miniature, most), *(asked(number, miniature) for number in CHECKS)]
    words = in_words(miniature)
    return record(miniature, checks, words), list(checks), words


def asked(invariant: str, miniature: Miniature) -> Check:
    """Check one invariant; whatever stops the run's own code is why it could not be."""
    try:
        made: Check = foreign("a step of the run", CHECKS[invariant], miniature)
        return made
    except SubjectError as error:
        return could_not_run(invariant, str(error))


def _updates(miniature: Miniature, most: int) -> list[Check]:
    try:
        made: list[Check] = foreign("a step of the run", expected_updates, miniature, most=most)
        return made
    except SubjectError as error:
        return [could_not_run("I1", str(error))]


def telling_miniature(recipe: LanguageRecipe, family: Mapping[str, Any], place: Path) -> Miniature:
    """Return the first small model under which the recipe draws responses that differ.

    Raises:
        SubjectError: there is none among the first, or none at all.
    """
    for seed in range(SEEDS):
        (place / str(seed)).mkdir()
        miniature = build(recipe, family, place / str(seed), seed=seed)
        if telling(miniature):
            return miniature
    rl = recipe.rl
    raise SubjectError(
        f"temperature = {rl.temperature:g}, top_k = {rl.top_k}, top_p = {rl.top_p:g} leave a small model too few "
        "different responses for anything to show"
    )


def record(miniature: Miniature, checks: list[Check], words: list[str]) -> dict[str, Any]:
    """Return an audit as plain values, ready for JSON."""
    recipe = miniature.original
    return {
        "verdict": overall(checks),
        "claims": [asdict(check) for check in checks],
        "model": recipe.model,
        "family": miniature.family,
        "estimand": estimand(*estimator_of(recipe)),
        "tolerance": miniature.tolerance,
        "why": miniature.why,
        "recipe": miniature.recipe.model_dump(mode="json", exclude_none=True),
        "in_words": words,
    }


def in_words(miniature: Miniature) -> list[str]:
    """Return what was run, and what was not."""
    recipe = miniature.original
    given = f"{recipe.policy.dtype} in the run" if recipe.policy.dtype != "float64" else "as in the run"
    adapters = f", adapters of rank {miniature.recipe.lora} for {recipe.lora}" if recipe.lora else ""
    lines = [
        f"stated: {estimand(*estimator_of(recipe))}",
        f"run on: {miniature.family} of two narrow layers, {TOKENS} tokens{adapters}, random weights in float64 "
        f"({given}), responses of up to {LENGTH} tokens in place of {recipe.rl.max_completion_length:,}",
        "reaches: rl_step whole: the engine, grading into outcomes, advantages, parts by token budget, shared-prefix "
        "forward and backward, accumulation and the checks before the optimizer; loading and checkpoints on disk",
    ]
    missing = ["the trained weights", "the grader", "the prompts and their template", "a vocabulary in several slices"]
    if recipe.policy.dtype != "float64":
        missing.append(f"the rounding of {recipe.policy.dtype}")
    if recipe.policy.engine == "vllm":
        missing.append("vllm, in whose place the package's own engine draws")
    missing += ["the kernels of cuda"] if recipe.policy.device == "cuda" else []
    missing += ["the warm-up"] if recipe.warmup.steps else []
    return [*lines, f"not reached: {', '.join(missing)}"]
