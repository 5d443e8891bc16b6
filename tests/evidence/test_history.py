"""Does a history add up? The rows of a real run, each inconsistency planted by hand."""

import copy
import json
import tomllib

import pytest

from assay.evidence.history import check_history

FIRST_RL = 20
"""Index of the first RL row of the small run: it follows 20 rows of warm-up."""


@pytest.fixture
def history(finished):
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    config = tomllib.loads((finished / "config.toml").read_text())
    return copy.deepcopy(rows), config, json.loads((finished / "results.json").read_text())


def test_the_history_of_a_run_adds_up(history):
    assert check_history(*history) == []


@pytest.mark.parametrize("index", [0, FIRST_RL, -1])
def test_a_missing_step_is_found(history, index):
    rows, config, results = history
    del rows[index]
    assert check_history(rows, config, results) == [
        "metrics.jsonl: 31 steps recorded, config.toml plans 20 warm-up and 12 RL steps"
    ]


def test_steps_out_of_order_are_found(history):
    rows, config, results = history
    rows[2], rows[3] = rows[3], rows[2]
    [finding] = check_history(rows, config, results)
    assert finding.endswith("line 3 is ('warmup', 4), expected ('warmup', 3)")


def test_a_step_of_the_other_phase_is_found(history):
    rows, config, results = history
    rows[FIRST_RL]["phase"] = "warmup"
    [finding] = check_history(rows, config, results)
    assert finding.endswith("line 21 is ('warmup', 1), expected ('rl', 1)")


def test_a_plan_of_astronomical_length_is_refused_at_once(history):
    rows, config, results = history
    config["rl"]["steps"] = 10**15
    assert "steps recorded" in check_history(rows, config, results)[0]
    config["rl"]["steps"], config["rl"]["problems_per_step"] = 12, 10**15
    assert "not the cycle's next" in check_history(rows, config, results)[0]


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("clipped_grad_norm", lambda row: row["grad_norm"] * 1.01, "does not follow from the raw norm"),
        ("clipped_grad_norm", lambda row: -0.1, "does not follow from the raw norm"),
        ("grad_norm", lambda row: row["clipped_grad_norm"] * 0.99, "does not follow from the raw norm"),
        ("problems", lambda row: row["problems"][::-1], "not the cycle's next 5"),
        ("problems", lambda row: [problem + 5 for problem in row["problems"]], "not the cycle's next 5"),
        ("trajectories", lambda row: 41, "41 trajectories, planned 40"),
        ("strict_reward", lambda row: row["strict_reward"] + 1 / 40, "is not strict reward - beta * log-ratio"),
        ("strict_reward", lambda row: row["strict_reward"] + 1 / 80, "is not a count of 40"),
        ("strict_reward", lambda row: 41 / 40, "is outside [0, 1]"),
        ("log_ratio", lambda row: row["log_ratio"] + 0.1, "is not strict reward - beta * log-ratio"),
        ("return", lambda row: row["return"] + 1e-3, "is not strict reward - beta * log-ratio"),
        ("zero_signal_groups", lambda row: 5, "stepped is True with 5 of 5 groups without signal"),
        ("stepped", lambda row: False, "stepped is False"),
        ("log_ratio", lambda row: float("inf"), "not finite"),
    ],
)
def test_a_step_whose_numbers_disagree_is_found(history, name, change, complaint):
    rows, config, results = history
    rows[FIRST_RL + 1][name] = change(rows[FIRST_RL + 1])
    findings = check_history(rows, config, results)
    assert any(one.startswith("metrics.jsonl: line 22, rl step 2: ") and complaint in one for one in findings), findings


def test_a_warm_up_step_is_checked_too(history):
    rows, config, results = history
    rows[0]["clipped_grad_norm"] = 2.0
    [finding] = check_history(rows, config, results)
    assert finding.startswith("metrics.jsonl: line 1, warmup step 1: clipped gradient norm 2.0")


@pytest.mark.parametrize(
    "name", ["warmup_steps", "rl_steps", "training_trajectories", "zero_signal_groups", "zero_signal_steps"]
)
def test_what_was_spent_must_be_what_the_rows_add_up_to(history, name):
    rows, config, results = history
    results["spent"][name] += 1
    [finding] = check_history(rows, config, results)
    assert finding.startswith(f"results.json: spent.{name} is")
