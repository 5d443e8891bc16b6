"""Runs to report on: trained here in about a second, so that every expectation comes from their own files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import assay

ODD = {
    "one step of each": {"warmup": {"steps": 1}, "rl": {"steps": 1}},
    "two RL steps": {"warmup": {"steps": 1}, "rl": {"steps": 2}},
    "no warm-up": {"warmup": {"steps": 0}, "rl": {"steps": 4}},
    "no RL": {"warmup": {"steps": 2}, "rl": {"steps": 0}},
    "nothing at all": {"warmup": {"steps": 0}, "rl": {"steps": 0}},
    "the whole set a step, no KL": {"warmup": {"steps": 2}, "rl": {"steps": 2, "problems_per_step": 20, "beta": 0.0}},
    "40 problems": {"task": {"train_problems": 40, "test_problems": 40}, "warmup": {"steps": 2}, "rl": {"steps": 9}},
}


def _trained(directory: Path, recipe: dict[str, Any]) -> Path:
    small = {"evaluation": {"samples": 50, "every": 3}, "save_steps": 4}
    return assay.train({**small, **recipe}, directory).directory


@pytest.fixture(scope="session")
def sampled_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of the sampled estimator that learns something and clips some gradients."""
    recipe = {"warmup": {"steps": 40}, "rl": {"steps": 10}}
    return _trained(tmp_path_factory.mktemp("report") / "sampled", recipe)


@pytest.fixture(scope="session")
def exact_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of the exact estimator, which draws no responses."""
    recipe = {"warmup": {"steps": 5}, "rl": {"steps": 6, "estimator": "exact", "num_generations": 0}}
    return _trained(tmp_path_factory.mktemp("report") / "exact", recipe)


@pytest.fixture(scope="session", params=ODD)
def odd_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with next to nothing in it, or more than usual."""
    return _trained(tmp_path_factory.mktemp("report") / "odd", ODD[request.param])


@pytest.fixture
def copied(sampled_run: Path, tmp_path: Path) -> Callable[[], Path]:
    """Return a function that makes a copy of the sampled run, to be damaged."""

    def copy() -> Path:
        return Path(shutil.copytree(sampled_run, tmp_path / "copy"))

    return copy
