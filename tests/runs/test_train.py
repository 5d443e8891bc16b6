"""Training into a directory: the same recipe gives the same bytes, and a start that fails leaves nothing."""

import json
import re
import shutil

import pytest
import torch

import assay
from assay.errors import ConfigError, RunError
from assay.evidence.manifest import BOUND, FILES, MANIFEST
from assay.evidence.sums import NAME
from assay.runs import train as module
from assay.runs.directory import write

WITHOUT_A_CLOCK = (*BOUND, MANIFEST)

ODD = {
    "no warm-up": {"warmup": {"steps": 0}, "rl": {"steps": 3}},
    "no RL": {"warmup": {"steps": 3}, "rl": {"steps": 0}},
    "nothing": {"warmup": {"steps": 0}, "rl": {"steps": 0}},
    "the exact gradient": {"warmup": {"steps": 3}, "rl": {"steps": 3, "estimator": "exact", "num_generations": 0}},
    "all problems at once": {"warmup": {"steps": 3}, "rl": {"steps": 3, "problems_per_step": 20}},
    "no KL": {"warmup": {"steps": 3}, "rl": {"steps": 3, "beta": 0}},
}


def same_bytes(a, b):
    return {name: (a / name).read_bytes() == (b / name).read_bytes() for name in WITHOUT_A_CLOCK}


def test_two_runs_of_one_recipe_are_the_same_bytes(finished, small, tmp_path):
    again = assay.train(small, tmp_path / "again").directory
    assert same_bytes(finished, again) == dict.fromkeys(WITHOUT_A_CLOCK, True)


def test_another_thread_count_in_the_environment_changes_no_byte(finished, process, tmp_path):
    shutil.copy(finished / "config.toml", tmp_path / "recipe.toml")
    arguments = ("-m", "assay", "train", tmp_path / "recipe.toml", "--output", tmp_path / "run")
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "2")
    trained = process(*arguments, **threads)
    assert trained.communicate()[1] == ""
    assert same_bytes(finished, tmp_path / "run") == dict.fromkeys(WITHOUT_A_CLOCK, True)


def test_another_seed_changes_data_weights_and_history(finished, small, tmp_path):
    other = assay.train(small | {"seed": 30}, tmp_path / "other").directory
    differs = {name for name, same in same_bytes(finished, other).items() if not same}
    assert differs == {*WITHOUT_A_CLOCK} - {"environment.json"}


def test_training_restores_the_thread_count(small, tmp_path):
    torch.set_num_threads(2)
    try:
        assay.train(small | {"warmup": {"steps": 1}, "rl": {"steps": 1}}, tmp_path / "run")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("recipe", ODD.values(), ids=ODD)
def test_a_run_of_any_shape_verifies(recipe, tmp_path):
    run = assay.train({"evaluation": {"samples": 10}, **recipe}, tmp_path / "run")
    assert assay.verify(run.directory).holds
    assert {path.name for path in run.directory.iterdir()} == {*FILES, NAME}
    assert run.results == json.loads((run.directory / "results.json").read_text())


def test_each_step_is_reported_as_it_is_recorded(small, tmp_path):
    seen = []
    run = assay.train(small, tmp_path / "run", on_step=seen.append)
    assert seen == [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]


def test_a_recipe_may_be_a_file_settings_or_an_object(small, tmp_path, finished):
    settings = assay.Recipe.model_validate(small)
    for recipe in (small, settings, finished / "config.toml", str(finished / "config.toml")):
        assert module.as_recipe(recipe) == settings
    assert module.as_recipe(None) == assay.Recipe()


def test_a_run_without_a_name_is_named_by_the_time(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny = small | {"warmup": {"steps": 0}, "rl": {"steps": 0}}
    assert re.fullmatch(r"runs/seed-\d{8}-\d{6}", str(assay.train(tiny).directory))


def test_a_directory_that_exists_is_never_touched(run, small, content):
    before = content(run)
    with pytest.raises(RunError, match="exists already"):
        assay.train(small, run)
    assert content(run) == before


def test_a_recipe_that_cannot_be_leaves_nothing(tmp_path):
    for recipe in ({"seed": -1}, {"task": {"train_problems": 4000}, "rl": {"problems_per_step": 1}}):
        with pytest.raises(ConfigError):
            assay.train(recipe, tmp_path / "runs" / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["config.toml", "data.json", "environment.json", "checkpoint.pt"])
def test_a_start_that_cannot_be_written_leaves_no_run(small, tmp_path, monkeypatch, name):
    def full(path, data):
        if path.name == name:
            raise RunError(f"{path}: No space left on device; free some space")
        write(path, data)

    monkeypatch.setattr(module, "write", full)
    with pytest.raises(RunError, match=f"{name}: No space left"):
        assay.train(small, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
