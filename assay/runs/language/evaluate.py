"""Evaluation of a finished language run's frozen weights. It writes nothing into the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.errors import ConfigError, RunError
from assay.evidence.files import resume_command
from assay.runs.language.layout import Layout
from assay.runs.language.measure import SPLITS
from assay.runs.language.results import at_point, gains, measure_point
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
    (made,) = measure_again(Path(output), (split,), samples=samples, say=say)
    return made


def measure_again(
    place: Path,
    splits: Sequence[str],
    *,
    samples: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[LanguageEvaluation]:
    """Reload a finished run's weights, each point's once, and measure them on some splits; see above."""
    recipe, problems = open_language_run(place)
    layout = Layout(place)
    if samples is not None:  # pass@k is of as many samples as there are
        few = tuple(k for k in recipe.evaluation.pass_k if k <= samples)
        recipe = recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update={"pass_k": few})})
    made: dict[str, dict[str, Record]] = {split: {} for split in splits}
    with opened(recipe, problems) as workshop:
        state = load_checkpoint(layout, workshop.loaded.policy, recipe, base=workshop.loaded.digest)
        if state is None or state.phase != "done":
            raise RunError(f"{place}: this run has not finished; continue it with: {resume_command(place)}")
        count = samples or recipe.evaluation.samples
        for name in points(recipe):
            with at_point(workshop, state, name, layout.warmup) as policy:
                for split in splits:
                    made[split][name] = measure_point(workshop, policy, name, split, samples=count, say=say)
    return [LanguageEvaluation(split, found, gains(found)) for split, found in made.items()]
