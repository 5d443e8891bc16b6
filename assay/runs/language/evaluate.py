"""Evaluation of a finished language run's frozen weights. It writes nothing into the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.errors import ConfigError, RunError
from assay.evidence.files import resume_command
from assay.runs.language.layout import Layout
from assay.runs.language.measure import SPLITS, measure
from assay.runs.language.results import ALL_POINTS, at_point, gains
from assay.runs.language.train import open_language_run
from assay.runs.language.weights import load_checkpoint
from assay.runs.language.workshop import opened
from assay.training.language.plan import points

Record = dict[str, Any]


@dataclass(frozen=True)
class LanguageEvaluation:
    """A run's points on one split.

    Attributes:
        split: ``"train"`` or ``"test"``.
        points: records of :func:`assay.evaluation.answers.point_record`, by point.
        gains: comparisons of :func:`assay.evaluation.compare.compare_points`, by phase; None where there was none.
    """

    split: str
    points: dict[str, Record]
    gains: dict[str, Record | None]


def evaluate_language(
    output: str | Path,
    split: str = "test",
    *,
    samples: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> LanguageEvaluation:
    """Reload a finished run's weights and measure each of its points on one split.

    Args:
        output: the run directory.
        split: ``"train"`` or ``"test"``.
        samples: responses a problem; None takes the run's own number, which repeats its own draws.
        say: is told what is being measured.

    Raises:
        ConfigError: no such split, or no samples.
        RunError: the run has not finished.
        CheckpointError, EvidenceError: a file is damaged.
    """
    if split not in SPLITS:
        raise ConfigError(f"split = {split!r}: no such split; use one of {', '.join(SPLITS)}")
    if samples is not None and samples < 1:
        raise ConfigError(f"samples = {samples}: need at least 1")
    place = Path(output)
    recipe, problems = open_language_run(place)
    layout = Layout(place)
    if samples is not None:  # pass@k is of as many samples as there are
        few = tuple(k for k in recipe.evaluation.pass_k if k <= samples)
        recipe = recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update={"pass_k": few})})
    with opened(recipe, problems) as workshop:
        state = load_checkpoint(layout, workshop.loaded.policy, recipe, base=workshop.loaded.digest)
        if state is None or state.phase != "done":
            raise RunError(f"{place}: this run has not finished; continue it with: {resume_command(place)}")
        made = {}
        for name in points(recipe):
            say(f"measuring {name} on {split}")
            occasion = ALL_POINTS.index(name) * len(SPLITS) + SPLITS.index(split)
            with at_point(workshop, state, name, layout.warmup) as policy:
                made[name] = measure(
                    workshop,
                    policy,
                    name,
                    split,
                    occasion=occasion,
                    samples=samples or recipe.evaluation.samples,
                    greedy=recipe.evaluation.greedy,
                )
    return LanguageEvaluation(split, made, gains(made))
