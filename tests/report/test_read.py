"""A run that cannot be reported on is refused with the file's name; text that cannot be seen is spelled out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.errors import EvidenceError, RunError
from assay.report.read import read_run

READ = (
    "config.toml",
    "data.json",
    "environment.json",
    "manifest.json",
    "metrics.jsonl",
    "results.json",
    "timing.jsonl",
)


@pytest.mark.parametrize("name", READ)
def test_missing_file(copied: Callable[[], Path], name: str) -> None:
    run = copied()
    (run / name).unlink()
    with pytest.raises(RunError, match=name):
        read_run(run)


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("content", ["{", "[]", "\x00"])
def test_damaged_file(copied: Callable[[], Path], name: str, content: str) -> None:
    run = copied()
    (run / name).write_text(content)
    with pytest.raises(EvidenceError, match=name):
        read_run(run)


def _at(record: Any, path: list[str | int]) -> tuple[Any, str | int]:
    for key in path[:-1]:
        record = record[key]
    return record, path[-1]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["points", "rl", "test", "success"], 1.5),
        (["points", "rl", "test", "success"], "much"),
        (["points", "rl", "test", "kl"], 1e300),
        (["points", "rl", "test", "sampled", "level"], 1.0),
        (["points", "rl", "test", "sampled", "trials"], -1),
        (["points", "rl", "test", "problems", "success"], [0.5]),
        (["points", "init"], None),
        (["plan", "visits_per_problem"], [1, 2, 3]),
        (["spent", "rl_steps"], 10**30),
        (["spent", "rl_steps"], 2.5),
        (["spent", "rl_steps"], True),
        (["tensors", 0, "shape"], ["<script>"]),
        (["tensors", 0, "max_abs_change"], []),
        (["reference_digests"], "none"),
    ],
)
def test_value_of_the_wrong_kind(copied: Callable[[], Path], path: list[str | int], value: object) -> None:
    run = copied()
    results = json.loads((run / "results.json").read_text())
    parent, key = _at(results, path)
    parent[key] = value
    (run / "results.json").write_text(json.dumps(results))
    with pytest.raises(EvidenceError, match=r"results\.json"):
        read_run(run)


def test_text_that_is_not_seen_is_spelled_out(copied: Callable[[], Path]) -> None:
    run = copied()
    data = json.loads((run / "data.json").read_text())
    data["train"][0] = "1\u202e2\ud8003\n"
    (run / "data.json").write_text(json.dumps(data))
    assert read_run(run).problems["train"][0] == r"1\u202e2\ud8003\n"


def test_spending_is_counted_from_the_history(sampled_run: Path) -> None:
    run = read_run(sampled_run)
    visits = Counter(problem for step in run.rl for problem in step.problems)
    counts = [visits[problem] for problem in range(len(run.problems["train"]))]
    generations = run.settings.generations
    assert run.results.spent.visits == (min(counts), max(counts)) == run.results.plan.visits
    assert run.results.spent.trajectories_per_problem == (min(counts) * generations, max(counts) * generations)
    assert run.results.spent.trajectories_per_problem == run.results.plan.trajectories_per_problem


def test_gains_follow_from_the_points(sampled_run: Path) -> None:
    run, recorded = read_run(sampled_run), json.loads((sampled_run / "results.json").read_text())
    for split in ("train", "test"):
        for phase in ("warmup", "rl"):
            assert run.gain(phase, split) == recorded["gains"][split][phase]
