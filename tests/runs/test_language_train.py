"""Whole runs of tiny language models: what is in the directory, resumed after any stop, verified, misused."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from runs.tiny_language_models import tiny_tokenizer
from runs.tiny_language_run import furnish, recipe, settings

from assay.cli import main
from assay.errors import ConfigError, InputError, Interrupted, RunError, UpdateError
from assay.evidence.files import read_json, read_rows
from assay.evidence.verify import verify_files
from assay.runs.language.evaluate import evaluate_language
from assay.runs.language.layout import Layout
from assay.runs.language.samples import read_samples
from assay.runs.language.train import Watch, resume_language, train_language
from assay.runs.language.verify import recompute_language
from assay.verdicts import Verdict

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with tiny models and some sums."""
    return furnish(tmp_path_factory.mktemp("language"))


@pytest.fixture(scope="module")
def whole(place: Path) -> Path:
    """Return an uninterrupted run."""
    return train_language(recipe(place), place / "whole").directory


def content(run: Path) -> dict[str, bytes]:
    """Return the files whose bytes depend on no clock and no directory name."""
    files = (path for path in run.rglob("*") if path.is_file())
    without = {"timing.jsonl", "provenance.intoto.json", "report.html", "SHA256SUMS"}
    return {str(path.relative_to(run)): path.read_bytes() for path in files if path.name not in without}


def test_a_run_is_intact_complete_and_reproduced(whole: Path):
    claims = [*verify_files(whole), recompute_language(whole)]
    assert [claim.verdict for claim in claims] == [Verdict.HOLDS] * 3, claims


def test_the_results_count_what_the_samples_hold(whole: Path):
    results, samples = read_json(Layout(whole).results), list(read_samples(Layout(whole).samples))
    assert list(results["points"]) == ["base", "warmup", "rl"]
    for point, split in itertools.product(results["points"], ("train", "test")):
        drawn = [s for s in samples if (s.point, s.split) == (point, split) and s.sample is not None]
        assert results["points"][point][split]["sampled"]["rate"] == pytest.approx(
            sum(s.status == "right" for s in drawn) / len(drawn)
        )
        assert len(drawn) == 12  # six problems, two samples
    rows = read_rows(Layout(whole).metrics)
    assert [row["step"] for row in rows if "test" in row] == [2, 4]
    assert results["spent"]["training_trajectories"] == 4 * 3 * 4


def test_mirrored_sums_are_on_one_side(whole: Path):
    sides = []
    for split in ("train", "test"):
        lines = (whole / "data" / f"{split}.jsonl").read_text().splitlines()
        sides.append({json.loads(line)["columns"]["pair"] for line in lines})
    assert sides[0].isdisjoint(sides[1]) and sides[1]


def test_the_saved_model_opens_in_transformers_and_is_the_trained_policy(whole: Path):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(whole / "model")
    from safetensors.torch import load_file

    trained = load_file(whole / "checkpoint" / "model.safetensors")
    for name, value in model.named_parameters():
        assert torch.equal(value, trained[name]), name
    base = AutoModelForCausalLM.from_pretrained(whole.parent / "gpt2")
    assert not torch.equal(next(model.parameters()), next(base.parameters()))


@pytest.mark.parametrize("stop_after", [1, 2, 3, 4])
def test_a_stopped_run_goes_on_as_if_it_had_not_been(place: Path, whole: Path, tmp_path: Path, stop_after: int):
    taken: list[int] = []
    stopping = Watch(
        on_step=lambda record, seconds, rollout: taken.append(1), stopping=lambda: len(taken) == stop_after
    )
    with pytest.raises(Interrupted, match="continue with"):
        train_language(recipe(place), tmp_path / "run", watch=stopping)
    resume_language(tmp_path / "run")
    assert content(tmp_path / "run") == content(whole)


def test_a_killed_run_goes_on_as_if_it_had_not_been(
    place: Path, whole: Path, tmp_path: Path, process: Callable[..., Any]
):
    script = "; ".join(
        [
            "import sys, torch; torch.set_num_threads(1)",
            f"sys.path.insert(0, {str(TESTS)!r})",
            "from pathlib import Path",
            "from runs.tiny_language_run import recipe",
            "from assay.runs.language.train import train_language",
            f"train_language(recipe(Path({str(place)!r})), Path({str(tmp_path / 'run')!r}))",
        ]
    )
    running = process("-c", script)
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 180
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 3):
        assert time.monotonic() < deadline and running.poll() is None, running.communicate()
        time.sleep(0.01)
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    resume_language(tmp_path / "run")
    assert content(tmp_path / "run") == content(whole)


def test_adapters_are_trained_and_their_base_is_the_reference(place: Path, tmp_path: Path):
    made = train_language(recipe(place, model="llama", lora=2), tmp_path / "run")
    claims = [*verify_files(tmp_path / "run"), recompute_language(tmp_path / "run")]
    assert [claim.verdict for claim in claims] == [Verdict.HOLDS] * 3, claims
    assert (tmp_path / "run" / "model" / "adapter_model.safetensors").exists()
    assert set(made.results["digests"]["reference"]) == {"start", "step 2", "end"}


def test_controls_and_bounds_are_measured_on_the_same_problems(place: Path, tmp_path: Path):
    wanted = {"controls": ["rejection", "random_reward", "format_only"], "bounds": 3}
    results = train_language(recipe(place, evaluation=wanted, warmup={"steps": 0}), tmp_path / "run").results
    numbers = [row["problem"] for row in results["points"]["rl"]["test"]["per_problem"]]
    for name in wanted["controls"]:
        assert [row["problem"] for row in results["controls"][name]["test"]["per_problem"]] == numbers
    assert results["gains"]["test"]["warmup"] is None
    assert [claim.verdict for claim in verify_files(tmp_path / "run")] == [Verdict.HOLDS] * 2


def test_evaluation_repeats_its_own_draws_and_writes_nothing(whole: Path):
    before = content(whole)
    made = evaluate_language(whole, "test")
    assert made.points["rl"] == read_json(Layout(whole).results)["points"]["rl"]["test"]
    assert evaluate_language(whole, "train", samples=1).points["rl"]["sampled"]["samples"] is not None
    assert content(whole) == before


def test_the_command_line_trains_evaluates_and_verifies(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    import tomli_w

    (tmp_path / "recipe.toml").write_text(
        tomli_w.dumps({k: v for k, v in settings().items() if k not in ("model", "data")})
    )
    monkeypatch.chdir(place)
    run = str(tmp_path / "run")
    arguments = [str(tmp_path / "recipe.toml"), "--model", "./gpt2", "--data", "sums.jsonl", "--lora", "0"]
    assert main(["train", *arguments, "--rl.steps", "2", "--output", run]) == 0
    said = capsys.readouterr().out
    assert "gradient of the expected reward" in " ".join(said.split()) and "report:" in said
    assert main(["evaluate", "--output", run, "--split", "test", "--samples", "2"]) == 0
    assert main(["evaluate", "--output", run, "--json"]) == 0
    assert main(["verify", run]) == 0
    assert main(["report", run]) == 0
    assert main(["train", "--resume", run]) == 2
    assert "has finished" in capsys.readouterr().err


def refused(place: Path, tmp_path: Path, error: type[Exception], match: str, **sections: Any) -> None:
    with pytest.raises(error, match=match):
        train_language(recipe(place, **sections), tmp_path / "run")


@pytest.mark.parametrize(
    ("sections", "match"),
    [
        ({"model": "./nowhere"}, "no such directory"),
        ({"model": "package:no_such_package"}, "no such package"),
        ({"rl": {"max_completion_length": 64}}, "leaves no room"),
        ({"rl": {"max_completion_length": 62}}, "fit beside a response"),
        ({"reward": "runs.tiny_rewards:missing"}, "no function missing"),
        ({"grading": {"self_test": 5}}, "fails its self-test"),
        ({"task": {"test_problems": 400}}, "400"),
        ({"rl": {"problems_per_step": 100}}, "a step takes no problem twice"),
        ({"policy": {"chat_template": False, "system_prompt": "be brief"}}, "system_prompt"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_written(
    place: Path, tmp_path: Path, sections: dict[str, Any], match: str
):
    refused(place, tmp_path, ConfigError, match, **sections)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["nan", "short"])
def test_a_reward_that_is_none_stops_the_run_and_loses_nothing(place: Path, tmp_path: Path, name: str):
    refused(place, tmp_path, InputError, "reward", reward=f"runs.tiny_rewards:{name}")
    assert (tmp_path / "run" / "checkpoint" / "state.json").exists()


def test_an_existing_directory_is_refused(place: Path, whole: Path):
    with pytest.raises(RunError, match="never overwritten"):
        train_language(recipe(place), whole)


def test_another_base_model_is_refused_on_resuming(place: Path, tmp_path: Path):
    from runs.tiny_language_models import tiny_model as build

    model = tmp_path / "model"
    build("gpt2").save_pretrained(model)
    tiny_tokenizer().save_pretrained(model)
    with pytest.raises(Interrupted):
        train_language(recipe(place, model=str(model)), tmp_path / "run", watch=Watch(stopping=lambda: True))
    build("gpt2", seed=5).save_pretrained(model)
    with pytest.raises(Exception, match="began with base model"):
        resume_language(tmp_path / "run")


def test_memory_that_runs_out_names_a_smaller_budget(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def no_room(*arguments: Any, **named: Any) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr("assay.policies.causal.model.token_logp", no_room)
    refused(place, tmp_path, UpdateError, "token_budget = 8192.*4096", warmup={"steps": 0})
    monkeypatch.undo()
    resume_language(tmp_path / "run")


def test_comparing_language_runs_is_refused_in_one_line(whole: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["compare", str(whole), str(whole)]) == 2
    assert "a language run, whose responses cannot be enumerated" in capsys.readouterr().err
