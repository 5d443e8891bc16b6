"""Comparison of two finished runs: their settings, histories, probabilities, gradients and results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from assay.core.digest import weights_digest
from assay.errors import EvidenceError, RunError
from assay.evaluation.exact import exact_logp
from assay.evaluation.gradient import Noise, exact_gradient, leave_one_out_noise
from assay.evidence.digest import file_digest
from assay.evidence.files import entries_of, read_json, read_rows
from assay.evidence.history import check_history
from assay.runs.kind import is_language_run
from assay.runs.results import Record, deviations
from assay.runs.train import load_finished, open_run
from assay.tasks.chain import SPLITS
from assay.threads import one_thread
from assay.training.config import Recipe
from assay.training.state import State
from assay.verdicts import Claim, Verdict

COMPARED = ("checkpoint.pt", "metrics.jsonl", "results.json")
CLOSE = 1e-5
"""Largest difference in any probability, gradient, recorded step or result between two runs that are called close."""
SHOWN = 10
CURVES = ("strict_reward", "log_ratio", "return", "grad_norm")


@dataclass(frozen=True)
class Comparison:
    """What two runs have in common.

    Attributes:
        runs: the two directories.
        settings: settings that differ, as ``name: first, second``.
        identical: whether each compared file is the same, byte for byte.
        probability_gap: largest absolute difference in the final probability of any response to any problem.
        gradient_gap: Euclidean distance of the objective's exact gradients at the final weights, all training
            problems; None when their shapes differ.
        curve_gaps: largest absolute difference over the RL steps both have, by record entry.
        success: mean exact success after RL, split to a pair.
        kl: mean exact KL after RL, nats, split to a pair.
        same_start: whether RL began at the same weights.
        differences: results, steps and gradients that are further apart than ``CLOSE``, one line each.
        noise: what sampling costs in the first RL step, when one run samples and both began at the same weights.
    """

    runs: tuple[Path, Path]
    settings: tuple[str, ...]
    identical: dict[str, bool]
    probability_gap: float
    gradient_gap: float | None
    curve_gaps: dict[str, float]
    success: dict[str, tuple[float, float]]
    kl: dict[str, tuple[float, float]]
    same_start: bool
    differences: tuple[str, ...]
    noise: Noise | None

    @property
    def claim(self) -> Claim:
        """Return whether the two are one and the same run: identical, close, or different."""
        if all(self.identical.values()):
            return Claim("same run", Verdict.HOLDS, "identical: weights, history and results, byte for byte")
        gap = f"largest difference in a response's probability {self.probability_gap:.3g}"
        if not self.settings and not self.differences and self.probability_gap <= CLOSE:
            return Claim("same run", Verdict.HOLDS, f"close, not identical: {gap} (limit {CLOSE:.0e})")
        return Claim("same run", Verdict.DISAGREES, f"different: {gap}", self.settings or self.differences[:SHOWN])


@dataclass(frozen=True)
class _Loaded:
    place: Path
    recipe: Recipe
    splits: dict[str, Any]
    state: State
    curves: dict[str, list[float]]
    results: Record
    end: dict[str, dict[str, float]]


def compare(first: str | Path, second: str | Path) -> Comparison:
    """Compare two finished runs on the problems of the first.

    Args:
        first: a run directory.
        second: another one.

    Raises:
        RunError: one is missing, unfinished, or the two have different problems.
        CheckpointError, ConfigError, EvidenceError: a file is damaged.
    """
    for place in map(Path, (first, second)):
        if is_language_run(place):
            raise RunError(
                f"{place}: a language run, whose responses cannot be enumerated; compare results.json of the two, or "
                f"train it again with: assay verify {place} --replay"
            )
    a, b = _load(Path(first)), _load(Path(second))
    if a.splits != b.splits:
        raise RunError(f"{a.place} and {b.place}: different problems, so nothing can be compared item by item")
    problems = a.splits["train"] + a.splits["test"]
    with one_thread():
        probabilities = [exact_logp(run.state.policy, problems).exp() for run in (a, b)]
        gradients = [
            exact_gradient(run.state.policy, _reference(run), run.splits["train"], beta=run.recipe.rl.beta)
            for run in (a, b)
        ]
        starts = {weights_digest(_reference(run).named_parameters()) for run in (a, b)}
        same_start = len(starts) == 1
        noise = _noise(a, b) if same_start else None
    curve_gaps = {name: _largest_gap(a.curves[name], b.curves[name]) for name in CURVES}
    gradient_gap = _distance(*gradients)
    apart = deviations(a.results, b.results, tolerance=CLOSE, sides=("first", "second"))
    apart += [f"{name} of a step differs by {gap:.3g}" for name, gap in curve_gaps.items() if gap > CLOSE]
    if gradient_gap is None or gradient_gap > CLOSE:
        apart.append("the exact gradients at the final weights differ")
    return Comparison(
        runs=(a.place, b.place),
        settings=tuple(_setting_differences(a.recipe.model_dump(), b.recipe.model_dump())),
        identical={name: file_digest(a.place / name) == file_digest(b.place / name) for name in COMPARED},
        probability_gap=float((probabilities[0] - probabilities[1]).abs().max()),
        gradient_gap=gradient_gap,
        curve_gaps=curve_gaps,
        success={split: (a.end[split]["success"], b.end[split]["success"]) for split in SPLITS},
        kl={split: (a.end[split]["kl"], b.end[split]["kl"]) for split in SPLITS},
        same_start=same_start,
        differences=tuple(apart),
        noise=noise,
    )


def _load(place: Path) -> _Loaded:
    recipe, splits = open_run(place)
    state = load_finished(place, recipe)
    rows, results = read_rows(place / "metrics.jsonl"), read_json(place / "results.json")
    with entries_of(f"{place}/metrics.jsonl or results.json"):
        findings = check_history(rows, recipe.model_dump(), results)
        if findings:
            raise EvidenceError(f"{place}/{findings[0]}")
        curves = {name: [float(row[name]) for row in rows if row["phase"] == "rl"] for name in CURVES}
        point = results["points"]["rl"]
        end = {split: {key: float(point[split][key]) for key in ("success", "kl")} for split in SPLITS}
    return _Loaded(place, recipe, splits, state, curves, results, end)


def _reference(run: _Loaded) -> torch.nn.Module:
    assert run.state.reference is not None
    return run.state.reference


def _distance(a: Tensor, b: Tensor) -> float | None:
    return float(torch.linalg.vector_norm(a - b)) if a.shape == b.shape else None


def _noise(a: _Loaded, b: _Loaded) -> Noise | None:
    """Return the sampling noise of the first RL step of whichever run samples; the start is common to both."""
    sampling = next((run for run in (a, b) if run.recipe.rl.estimator == "rloo"), None)
    if sampling is None or {a.recipe.rl.estimator, b.recipe.rl.estimator} == {"rloo"}:
        return None
    batch = tuple(sampling.splits["train"][index] for index in sampling.recipe.batch(0))
    start = _reference(sampling)
    rl = sampling.recipe.rl
    return leave_one_out_noise(start, start, batch, beta=rl.beta, group_size=rl.num_generations)


def _largest_gap(a: list[float], b: list[float]) -> float:
    """Return the largest absolute difference over the steps both have."""
    return max((abs(x - y) for x, y in zip(a, b, strict=False)), default=0.0)


def _setting_differences(a: dict[str, Any], b: dict[str, Any], prefix: str = "") -> list[str]:
    lines = []
    for name, value in a.items():
        other = b[name]
        if isinstance(value, dict):
            lines += _setting_differences(value, other, f"{prefix}{name}.")
        elif value != other:
            lines.append(f"{prefix}{name}: {value}, {other}")
    return lines
