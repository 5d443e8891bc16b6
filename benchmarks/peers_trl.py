"""What TRL 1.16 ascends under its settings: rows for the docs, each a fact that the same command reproduces.

    python benchmarks/peers_trl.py > docs/peers_trl.json

A row at the log-prob boundary runs TRL's scoring and loss over every group in the default world; a row of a whole
trainer runs a real one over every batch of a tiny GPT-2. Both are exact up to the tolerance that the row states.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from assay.audit.adapters.trl import SUBJECTS
from assay.audit.adapters.trl_trainer import TRAINERS
from assay.audit.expectation import Design, expected_ascent
from assay.threads import one_thread
from assay.tree.attribution import Attribution, attribute
from assay.tree.fields import FIELDS, field, objective_gradient, parse_objective
from assay.tree.world import World, default_world

GROUP_SIZE = 3
SHORT = {"max_completion_length": "3"}
PLAIN = {"scale_rewards": "none"}
SETTINGS: tuple[tuple[str, dict[str, str]], ...] = (
    ("trl.rloo", {}),
    ("trl.rloo", {"normalize_advantages": "true"}),
    ("trl.grpo", {}),
    ("trl.grpo", PLAIN),
    ("trl.grpo", {"loss_type": "grpo"}),
    ("trl.grpo", {"loss_type": "grpo", **PLAIN}),
    ("trl.grpo", {"loss_type": "grpo", "importance_sampling_level": "sequence", **PLAIN}),
    ("trl.grpo", {"loss_type": "bnpo", **PLAIN}),
    ("trl.grpo", {"loss_type": "dr_grpo", **PLAIN, **SHORT}),
    ("trl.grpo", {"loss_type": "dr_grpo", **SHORT}),
    ("trl.grpo", {"loss_type": "cispo", **PLAIN}),
    ("trl.grpo", {"loss_type": "cispo", "epsilon_high": "5", **PLAIN}),
    ("trl.grpo", {"loss_type": "sapo", **PLAIN}),
    ("trl.grpo", {"loss_type": "vespo", **PLAIN}),
    ("trl.grpo", {"loss_type": "luspo", **PLAIN}),
    ("trl.grpo", {"loss_type": "luspo"}),
    ("trl.grpo", {"loss_type": "luspo", "beta": "0.1", **PLAIN}),
    ("trl.grpo", {"loss_type": "luspo", "beta": "0.1", "use_bias_correction_kl": "false", **PLAIN}),
    (
        "trl.grpo",
        {"loss_type": "luspo", "beta": "0.1", "importance_sampling_level": "sequence", **PLAIN},
    ),
    ("trl.grpo", {"loss_type": "luspo", "mask_truncated_completions": "true", **PLAIN}),
    ("trl.grpo", {"loss_type": "luspo", "top_entropy_quantile": "0.2", **PLAIN}),
)
TRAINER_SETTINGS: tuple[tuple[str, dict[str, str], dict[str, Any]], ...] = (
    ("trl.rloo_trainer", {}, {}),
    ("trl.rloo_trainer", {}, {"prompts": ("a", "b"), "length": 1}),
    ("trl.rloo_trainer", {}, {"prompts": ("a", "b b"), "length": 1}),
    ("trl.grpo_trainer", {}, {}),
    ("trl.grpo_trainer", {"loss_type": "dr_grpo", **SHORT, **PLAIN}, {}),
    ("trl.grpo_trainer", {"loss_type": "luspo", **PLAIN}, {}),
)
"""With the prompts of a batch and the longest response, where they are not one prompt and three tokens."""


def rows() -> list[dict[str, Any]]:
    """Return one row a setting: what is ascended, how far that is from what is stated, and how that is known."""
    with one_thread():
        return [*_loss_rows(), *_trainer_rows()]


def _loss_rows() -> Iterator[dict[str, Any]]:
    world = default_world()
    known = {name: torch.cat([field(name, problem) for problem in world]) / len(world) for name in FIELDS}
    for name, settings in SETTINGS:
        subject = SUBJECTS[name](settings)
        terms = parse_objective(subject.objective)
        stated = objective_gradient(terms, world)
        design = Design((GROUP_SIZE,) * len(world), tolerance=subject.tolerance)
        made = expected_ascent(subject.loss, world, design, stated)
        scale = max(float(each.norm()) for each in known.values())
        ascends = attribute(made.ascent, known, scale=scale, nearest=tuple(terms), exact=subject.tolerance)
        yield {
            "subject": name,
            "settings": settings,
            "group_size": GROUP_SIZE,
            "boundary": "log-probabilities",
            **_figures(subject.objective, made.ascent, stated, ascends),
            "by_problem": {} if ascends.exact else _by_problem(world, made.ascent, tuple(terms), subject.tolerance),
            "tolerance": subject.tolerance,
            "why": subject.why,
            "exactness": made.exactness,
            "versions": dict(subject.versions),
        }


def _by_problem(world: World, ascent: Tensor, nearest: tuple[str, ...], exact: float) -> dict[str, Any]:
    """Return what is ascended on each problem alone: a setting may only weigh problems differently."""
    parts = torch.split(ascent * len(world), [problem.logits.numel() for problem in world])
    made = {}
    for problem, part in zip(world, parts, strict=True):
        known = {name: field(name, problem) for name in FIELDS}
        found = attribute(part, known, scale=1.0, nearest=nearest, longest=1, exact=exact)
        made[problem.name] = {"ascends": found.coefficients, "residual": found.residual, "exact": found.exact}
    return made


def _trainer_rows() -> Iterator[dict[str, Any]]:
    for name, settings, shape in TRAINER_SETTINGS:
        subject = TRAINERS[name](settings, group_size=2, **shape)
        report = subject.audit()
        assert report.ascends is not None, report.check.detail
        yield {
            "subject": name,
            "settings": settings,
            "group_size": 2,
            "boundary": "whole trainer",
            "prompts": [place.problem.name for place in subject.problems],
            "objective": subject.objective,
            "ascends": report.ascends.coefficients,
            "residual": report.ascends.residual,
            "exact": report.ascends.exact,
            "bias": report.check.error,
            "by_problem": {},
            "tolerance": subject.tolerance,
            "why": subject.why,
            "exactness": report.check.exactness,
            "versions": dict(subject.versions),
        }


def _figures(objective: str, ascent: Tensor, stated: Tensor, ascends: Attribution) -> dict[str, Any]:
    return {
        "objective": objective,
        "ascends": ascends.coefficients,
        "residual": ascends.residual,
        "exact": ascends.exact,
        "bias": float((ascent - stated).norm() / stated.norm()),
    }


if __name__ == "__main__":
    json.dump(rows(), sys.stdout, indent=2)
    sys.stdout.write("\n")
