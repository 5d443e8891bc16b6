"""The results of a run: a pure function of its recipe, its problems, its checkpoint and its history.

That is what lets verification recompute every one of them.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from torch import Tensor, nn

from assay.errors import RunError
from assay.evaluation.exact import exact_logp, measure
from assay.evaluation.point import PointEvaluation, evaluate_point
from assay.evaluation.sampled import LEVEL
from assay.tasks.chain import SPLITS, Problem
from assay.training.config import POINTS, Recipe, plan
from assay.training.loop import Monitor
from assay.training.state import State, initial_policy

Record = dict[str, Any]
Splits = dict[str, tuple[Problem, ...]]


def monitor(splits: Splits) -> Monitor:
    """Return the exact measures recorded along the way: mean success and KL on each split, nothing sampled.

    The reference is frozen (its digest is checked at every checkpoint), so its tree is enumerated once.
    """
    logp_ref: dict[str, Tensor] = {}

    def measured(policy: nn.Module, reference: nn.Module) -> Record:
        record = {}
        for split, problems in splits.items():
            if split not in logp_ref:
                logp_ref[split] = exact_logp(reference, problems)
            made = measure(exact_logp(policy, problems), logp_ref[split], problems)
            record[split] = {"success": made.mean_success, "kl": made.mean_kl}
        return record

    return measured


def frozen_points(recipe: Recipe, state: State) -> dict[str, nn.Module]:
    """Return the three sets of weights that a finished run is judged by, in order.

    The initial weights come from the seed again; the reference is the policy after warm-up, before RL.

    Raises:
        RunError: the run has not finished.
    """
    if state.phase != "done" or state.reference is None:
        raise RunError(f"the run stands at {state.phase} step {state.step} and has no results before its end")
    return {"init": initial_policy(recipe), "warmup": state.reference, "rl": state.policy}


def measure_split(
    recipe: Recipe, state: State, splits: Splits, split: str, *, samples: int
) -> dict[str, PointEvaluation]:
    """Measure the three points of a finished run on one split, each draw at an address of its own."""
    points = frozen_points(recipe, state)
    return {
        name: evaluate_point(
            policy,
            points["warmup"],
            splits[split],
            samples=samples,
            seed=recipe.seed,
            occasion=number * len(SPLITS) + SPLITS.index(split),
        )
        for number, (name, policy) in enumerate(points.items())
    }


def _point_record(made: PointEvaluation) -> Record:
    return {
        "success": made.exact.mean_success,
        "kl": made.exact.mean_kl,
        "sampled": {**asdict(made.sampled), "level": LEVEL},
        "problems": {"success": made.exact.success, "kl": made.exact.kl},
    }


def compute_results(recipe: Recipe, splits: Splits, state: State, rows: list[Record]) -> Record:
    """Return everything a finished run reports, to be written as ``results.json``.

    Args:
        recipe: the run's settings.
        splits: training and test problems.
        state: the finished state; its reference is the policy before RL.
        rows: one record a step, as emitted.
    """
    measured = {
        split: measure_split(recipe, state, splits, split, samples=recipe.evaluation.samples) for split in SPLITS
    }
    points = {point: {split: _point_record(measured[split][point]) for split in SPLITS} for point in POINTS}
    history = [row for row in rows if row["phase"] == "rl"]
    return {
        "plan": asdict(plan(recipe)),
        "spent": {
            "warmup_steps": len(rows) - len(history),
            "rl_steps": len(history),
            "training_trajectories": sum(row["trajectories"] for row in history),
            "evaluation_samples": sum(
                split["sampled"]["trials"] for point in points.values() for split in point.values()
            ),
            "zero_signal_groups": sum(row["zero_signal_groups"] for row in history),
            "zero_signal_steps": sum(not row["stepped"] for row in history),
        },
        "points": points,
        "gains": {
            split: {
                "warmup": points["warmup"][split]["success"] - points["init"][split]["success"],
                "rl": points["rl"][split]["success"] - points["warmup"][split]["success"],
            }
            for split in SPLITS
        },
        "tensors": _participation(state),
        "reference_digests": dict(state.reference_digests),
    }


def _participation(state: State) -> list[Record]:
    """Return, for each tensor, its largest change over RL and the norm of its last applied gradient."""
    assert state.reference is not None
    before = dict(state.reference.named_parameters())
    return [
        {
            "name": name,
            "shape": list(parameter.shape),
            "max_abs_change": float((parameter - before[name]).detach().abs().max()),
            "last_gradient_norm": state.last_gradient.get(name, 0.0),
        }
        for name, parameter in state.policy.named_parameters()
    ]


def deviations(
    recorded: Any,
    computed: Any,
    *,
    tolerance: float,
    sides: tuple[str, str] = ("recorded", "recomputed"),
    path: str = "",
) -> list[str]:
    """Compare two nested records and return where they differ, one line a place.

    Args:
        recorded: what the run says.
        computed: what follows from its weights.
        tolerance: largest absolute difference between two floats that still agree.
        sides: what the two are called in messages.
        path: of this part, for messages.
    """
    if isinstance(recorded, dict) and isinstance(computed, dict):
        single = set(recorded) ^ set(computed)
        missing = [f"{path}{key}: only {sides[0] if key in recorded else sides[1]}" for key in single]
        pairs = [(key, recorded[key], computed[key]) for key in computed if key in recorded]
    elif isinstance(recorded, list) and isinstance(computed, list | tuple) and len(recorded) == len(computed):
        missing, pairs = [], [(i, a, b) for i, (a, b) in enumerate(zip(recorded, computed, strict=True))]
    else:
        return _leaf_deviation(recorded, computed, tolerance, sides, path)
    inner = [deviations(a, b, tolerance=tolerance, sides=sides, path=f"{path}{key}.") for key, a, b in pairs]
    return sorted(missing) + [line for lines in inner for line in lines]


def _leaf_deviation(recorded: Any, computed: Any, tolerance: float, sides: tuple[str, str], path: str) -> list[str]:
    if isinstance(computed, float) and isinstance(recorded, float | int) and not isinstance(recorded, bool):
        same = math.isfinite(recorded) and abs(recorded - computed) <= tolerance
    else:
        same = type(recorded) is type(computed) and recorded == computed
    return [] if same else [f"{path[:-1]}: {sides[0]} {_brief(recorded)}, {sides[1]} {_brief(computed)}"]


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
