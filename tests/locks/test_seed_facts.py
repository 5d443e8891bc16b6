"""What a reader of the chapter may rely on, number by number, checked on one whole run of the seed experiment.

The parts are tested beside the code they belong to; here the run as a user makes it must show them. A change
that breaks one of these changes what users were promised: do not mend the test.
"""

import json
import runpy
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

import assay
from assay.core.digest import weights_digest
from assay.tasks.chain import Problem

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return assay.train(ROOT / "recipes" / "seed.toml", tmp_path_factory.mktemp("seed") / "run")


@pytest.fixture(scope="module")
def rows(run):
    records = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    return {phase: [row for row in records if row["phase"] == phase] for phase in ("warmup", "rl")}


@pytest.fixture(scope="module")
def checkpoint(run):
    return torch.load(run.directory / "checkpoint.pt", weights_only=True)


def test_00_budget_of_4000_trajectories_25_visits_and_200_a_problem(run, rows):
    visits = Counter(problem for row in rows["rl"] for problem in row["problems"])
    assert len(rows["warmup"]) == 40 and len(rows["rl"]) == 100
    assert {row["trajectories"] for row in rows["rl"]} == {5 * 8}
    assert run.results["spent"]["training_trajectories"] == 100 * 40 == 4000
    assert set(visits) == set(range(20)) and set(visits.values()) == {25}
    assert run.results["plan"]["trajectories_per_problem"] == [25 * 8, 25 * 8]
    assert run.results["spent"]["evaluation_samples"] == 6 * 1000, "counted apart"


def test_01_warmup_starts_near_twice_log_ten_and_falls(rows):
    """A full response of two near-uniform digits costs about 2 ln 10 = 4.6 nats: the sum over its tokens, not
    the mean."""
    first, last = rows["warmup"][0]["negative_log_likelihood"], rows["warmup"][-1]["negative_log_likelihood"]
    assert 4.6 < first < 5.6 and last < first / 2


def test_02_one_snapshot_is_reference_and_baseline_and_its_digest_never_changes(run, checkpoint):
    digests = run.results["reference_digests"]
    assert list(digests) == ["rl 0", *(f"rl {step}" for step in range(10, 100, 10)), "end"]
    assert set(digests.values()) == {weights_digest(checkpoint["reference"].items())}
    assert all(kl == 0.0 for kl in run.results["points"]["warmup"]["train"]["problems"]["kl"])


def test_03_sampler_and_rescored_log_probabilities_agree(rows):
    assert all(row["sampler_gap"] < 1e-5 for row in rows["rl"])


def test_04_strict_reward_is_a_count_of_forty(rows):
    for row in rows["rl"]:
        right = row["strict_reward"] * 40
        assert right == pytest.approx(round(right), abs=1e-4) and 0 <= right <= 40


def test_05_reward_log_ratio_and_return_are_kept_apart_and_fit_together(rows):
    for row in rows["rl"]:
        assert row["return"] == pytest.approx(row["strict_reward"] - 0.03 * row["log_ratio"], abs=1e-6)
    assert rows["rl"][0]["log_ratio"] == 0.0, "policy and reference are one at the first step"
    assert "loss" not in {key for row in rows["rl"] for key in row}, "its value means nothing and is not reported"


def test_08_a_group_without_signal_is_counted_and_a_batch_of_them_does_not_step(run, rows):
    for row in rows["rl"]:
        assert row["stepped"] == (row["zero_signal_groups"] < 5)
    assert run.results["spent"]["zero_signal_groups"] == sum(row["zero_signal_groups"] for row in rows["rl"])


def test_09_raw_and_clipped_gradient_norms_are_both_logged(rows):
    for row in rows["warmup"] + rows["rl"]:
        assert row["clipped_grad_norm"] == pytest.approx(min(row["grad_norm"], 1.0), rel=1e-5)
    assert max(row["grad_norm"] for row in rows["rl"]) > 1.0, "so that clipping is seen to act"


def test_10_all_seventeen_tensors_changed_and_had_a_gradient_at_the_end(run, checkpoint):
    assert len(run.results["tensors"]) == 17
    for tensor in run.results["tensors"]:
        change = (checkpoint["policy"][tensor["name"]] - checkpoint["reference"][tensor["name"]]).abs().max()
        assert tensor["max_abs_change"] == float(change) > 0
        assert tensor["last_gradient_norm"] > 0
    total = sum(tensor["last_gradient_norm"] ** 2 for tensor in run.results["tensors"]) ** 0.5
    last = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()][-1]
    assert total == pytest.approx(last["grad_norm"], rel=1e-5)


def test_11_warmup_gain_and_rl_gain_add_up_and_are_never_mixed(run):
    points = run.results["points"]
    for split in ("train", "test"):
        success = [points[point][split]["success"] for point in ("init", "warmup", "rl")]
        gains = run.results["gains"][split]
        assert gains == {"warmup": success[1] - success[0], "rl": success[2] - success[1]}
    assert points["init"]["train"]["success"] == pytest.approx(0.01, abs=0.01), "chance is one in a hundred"
    assert run.results["gains"]["train"]["rl"] > 0.05, "reinforcement had something to do"


def test_12_training_memorises_and_test_stays_near_chance(run):
    end = run.results["points"]["rl"]
    assert end["train"]["success"] > 0.5 > 0.1 > end["test"]["success"]


def test_13_exact_values_lie_in_most_of_the_sampled_intervals(run):
    """Six exact 95% intervals: two or more misses have a chance of 3%, four or more of 0.01%."""
    misses = 0
    for point in run.results["points"].values():
        for split in point.values():
            sampled = split["sampled"]
            assert sampled["trials"] == 1000
            misses += not sampled["low"] <= split["success"] <= sampled["high"]
    assert misses < 4


def test_14_problems_are_disjoint_and_four_thousand_exist(run):
    data = json.loads((run.directory / "data.json").read_text())
    train, test = ([Problem(prompt) for prompt in data[split]] for split in ("train", "test"))
    assert len(set(train)) == len(set(test)) == 20 and not set(train) & set(test)


def test_15_the_chapters_snippets_run_as_written(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT))
    snippets = """
import torch
from run import loo_advantages
r = torch.tensor([1., 0., 0., 0., 0., 0., 0., 0.])
a = loo_advantages(r, 8)
assert torch.allclose(a, torch.tensor([1.] + [-1/7] * 7))
assert abs(float(a.sum())) < 1e-6

from gradient_audit import audit
r = audit()
assert len(r['tensors']) == 17
assert r['negative_control']['status'] == 'REJECTED'
assert r['model_unchanged'] and not r['training_performed']
print(r['max_absolute_error'], r['negative_control']['max_absolute_gradient_error'])
"""
    exec(compile(snippets, "chapter", "exec"), {})
    error, control = map(float, capsys.readouterr().out.split())
    assert error <= 1e-12 and control > 1e-3


def test_16_the_chapters_commands_run_as_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    for line in (
        "run.py train --output my-run",
        "run.py evaluate --output my-run --split test",
        "gradient_audit.py --output runs/gradient-audit.json",
    ):
        name, *arguments = line.split()
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        with pytest.raises(SystemExit) as done:
            runpy.run_path(str(ROOT / name), run_name="__main__")
        assert done.value.code == 0, line
    assert "after RL" in capsys.readouterr().out
    assert json.loads((tmp_path / "runs" / "gradient-audit.json").read_text())["holds"] is True
    assert assay.verify(tmp_path / "my-run").holds
