"""Evaluation of a finished run's frozen weights. It writes nothing into the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from assay.errors import ConfigError
from assay.evaluation.point import PointEvaluation
from assay.runs.results import measure_split
from assay.runs.train import load_finished, open_run
from assay.tasks.chain import SPLITS, Problem
from assay.threads import one_thread
from assay.training.config import MOST


@dataclass(frozen=True)
class Evaluation:
    """A run's three points on one split.

    Attributes:
        split: ``"train"`` or ``"test"``.
        problems: in order.
        points: ``"init"``, ``"warmup"`` (before RL) and ``"rl"`` (after it).
    """

    split: str
    problems: tuple[Problem, ...]
    points: dict[str, PointEvaluation]


def evaluate(output: str | Path, split: str = "test", *, samples: int | None = None) -> Evaluation:
    """Reload a finished run's checkpoint and measure its three points on one split.

    Samples are drawn from the evaluation stream and counted apart; the training streams are not touched, and
    nothing is written.

    Args:
        output: the run directory.
        split: ``"train"`` or ``"test"``.
        samples: independent samples a point; None takes the run's own number, which repeats its own draws.

    Raises:
        ConfigError: no such split, or a number of samples that is none or more than ``MOST``.
        RunError: no such run, or it has not finished.
        CheckpointError, EvidenceError: a file is damaged.
    """
    if split not in SPLITS:
        raise ConfigError(f"split = {split!r}: no such split; use one of {', '.join(SPLITS)}")
    if samples is not None and not 1 <= samples <= MOST:
        raise ConfigError(f"samples = {samples}: need at least 1 and at most {MOST}")
    place = Path(output)
    recipe, splits = open_run(place)
    state = load_finished(place, recipe)
    with one_thread():
        points = measure_split(recipe, state, splits, split, samples=samples or recipe.evaluation.samples)
    return Evaluation(split, splits[split], points)
