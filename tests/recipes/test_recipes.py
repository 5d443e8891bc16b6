"""The recipes: two doors to one experiment, its exact twin, and the three cases of cyclic sampling."""

import importlib.util
import json
import sys
from fractions import Fraction
from pathlib import Path

import pytest

import assay
from assay.training.config import Recipe, build_recipe, read_settings

RECIPES = Path(__file__).parents[2] / "recipes"


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", RECIPES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_files_spell_out_every_default():
    assert build_recipe(read_settings(RECIPES / "seed.toml"), place="seed") == Recipe()
    assert read_settings(RECIPES / "seed.toml") == Recipe().model_dump()


def test_the_twin_differs_in_the_estimator_alone():
    ours, twin = (read_settings(RECIPES / f"{name}.toml") for name in ("seed", "seed-exact"))
    assert twin["rl"].pop("estimator") == "exact" and ours["rl"].pop("estimator") == "rloo"
    assert twin["rl"].pop("num_generations") == 0 and ours["rl"].pop("num_generations") == 8
    assert ours == twin


def test_both_doors_take_the_same_steps_and_end_with_the_same_numbers(tmp_path):
    """The file for reading shares no code with the package; its own Philox, policy, loop and arithmetic must agree."""
    points, history = load("seed").run()
    run = assay.train(RECIPES / "seed.toml", tmp_path / "run")
    rows = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["phase"] == "rl"]
    assert len(history) == len(rows) == 100
    for step, row in zip(history, rows, strict=True):
        assert step["strict_reward"] == row["strict_reward"]
        assert step["return"] == pytest.approx(row["return"], abs=1e-5)
        assert step["grad_norm"] == pytest.approx(row["grad_norm"], rel=1e-3)
    for ours, name in zip(points.values(), ("init", "warmup", "rl"), strict=True):
        recorded = [run.results["points"][name][split]["success"] for split in ("train", "test")]
        assert list(ours) == pytest.approx(recorded, abs=1e-5)


def test_the_three_cases_of_cyclic_sampling():
    """Opposite gradients ±p(1-p) = ±1/4 at p = 1/2; only frozen accumulation and uniform draws give the full zero."""
    cases = load("cyclic_sampling")
    two = cases.two_problems()
    assert two.first_step == Fraction(1, 2) * Fraction(1, 2) != two.full == 0
    assert two.accumulated == two.uniform == two.full
    seed = cases.seed_experiment()
    assert seed.first_step > 0.1 and seed.cycle > 0.1
    assert seed.accumulated < 1e-12 and seed.uniform < 1e-12
