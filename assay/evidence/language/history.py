"""Does a language run's history add up? Every planned step is there once, in order, and its counts agree."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from assay.evidence.files import each_row, entries_of, read_json, read_rows, read_toml

STATUSES = ("right", "wrong", "unparseable", "timeout", "error")
SLACK = 1e-6
"""Relative, for norms and means that float32 has rounded."""

Row = dict[str, Any]


@entries_of("metrics.jsonl, config.toml, data/train.jsonl or results.json")
def check_language_history(place: Path) -> list[str]:
    """Return what is wrong with the recorded steps of a finished run, one line a finding."""
    config, rows = read_toml(place / "config.toml"), read_rows(place / "metrics.jsonl")
    planned = config["warmup"]["steps"] + config["rl"]["steps"]
    if len(rows) != planned:
        return [f"metrics.jsonl: {len(rows)} steps recorded, config.toml plans {planned}"]
    numbers = {row["number"] for row in each_row(place / "data" / "train.jsonl")}
    findings = check_steps(rows, config, numbers)
    if findings:
        return findings
    spent = read_json(place / "results.json")["spent"]
    return [
        f"results.json: spent.{name} is {spent[name]}, metrics.jsonl adds up to {value}"
        for name, value in add_up(rows).items()
        if spent[name] != value
    ]


def add_up(rows: list[Row]) -> dict[str, int]:
    """Return what the steps of a run come to: the entries of ``spent`` in ``results.json`` that its history gives."""
    history = [row for row in rows if row["phase"] == "rl"]
    groups = sum(sum(row["groups"].values()) for row in history)
    return {
        "warmup_steps": len(rows) - len(history),
        "rl_steps": len(history),
        "training_trajectories": sum(sum(row["outcomes"].values()) for row in history),
        "zero_signal_groups": groups - sum(row["groups"]["informative"] for row in history),
        "zero_signal_steps": sum(not row["stepped"] for row in history),
    }


def check_steps(rows: list[Row], config: dict[str, Any], numbers: set[int]) -> list[str]:
    """Return what is wrong with the steps recorded so far: each must be the planned one, and consistent in itself.

    Args:
        rows: of ``metrics.jsonl``.
        config: of ``config.toml``.
        numbers: of the training problems.
    """
    warmup = config["warmup"]["steps"]
    expected = [("warmup", n + 1) if n < warmup else ("rl", n + 1 - warmup) for n in range(len(rows))]
    for line, (row, step) in enumerate(zip(rows, expected, strict=True), 1):
        if (row["phase"], row["step"]) != step:
            found = f"line {line} is {(row['phase'], row['step'])}, expected {step}"
            return [f"metrics.jsonl: not the planned steps in order: {found}"]
    findings = []
    for line, row in enumerate(rows, 1):
        wrong = _check_update(row, config[row["phase"]])
        if row["phase"] == "rl":
            wrong += [*_check_batch(row, config["rl"], numbers), *_check_means(row, config["rl"])]
        findings += [f"metrics.jsonl: line {line}, {row['phase']} step {row['step']}: {what}" for what in wrong]
    total = 0
    for line, row in enumerate(rows, 1):
        if row.get("num_tokens", total) < total:
            findings.append(
                f"metrics.jsonl: line {line}: num_tokens falls to {row['num_tokens']}, it counts all so far"
            )
        total = row.get("num_tokens", total)
    return findings


def _check_update(row: Row, settings: dict[str, Any]) -> list[str]:
    raw, clipped = row["grad_norm"], row["clipped_grad_norm"]
    wrong = []
    if not 0 <= clipped <= min(raw, settings["max_grad_norm"]) * (1 + SLACK):
        wrong.append(f"clipped gradient norm {clipped} does not follow from the raw norm {raw}")
    if not 0 <= row["learning_rate"] <= settings["learning_rate"] * (1 + SLACK):
        wrong.append(f"learning rate {row['learning_rate']} is above the planned {settings['learning_rate']}")
    return wrong


def _check_batch(row: Row, settings: dict[str, Any], numbers: set[int]) -> list[str]:
    """Return what is inconsistent among a step's counts of problems, groups and responses."""
    size, batch = settings["num_generations"], settings["problems_per_step"]
    problems, outcomes, groups = row["problems"], row["outcomes"], row["groups"]
    wrong = []
    if len(problems) != batch or not set(problems) <= numbers:
        wrong.append(f"problems {problems} are not {batch} problems of data/train.jsonl")
    repeated, most = Counter(problems).most_common(1)[0] if problems else (None, 1)
    if most > 1 and batch <= len(numbers):
        wrong.append(f"problem {repeated} comes {most} times")
    for name, counts in (("outcomes", outcomes), ("groups", groups)):
        if not all(type(count) is int and count >= 0 for count in counts.values()):
            wrong.append(f"{name} {counts} are not counts")
    if set(outcomes) != set(STATUSES) or sum(outcomes.values()) != size * batch:
        wrong.append(f"outcomes {outcomes} do not count {size * batch} responses")
    if sum(groups.values()) != batch:
        wrong.append(f"groups {groups} do not count {batch} groups")
    if groups["informative"] and not row["stepped"]:
        wrong.append(f"no update was applied, with {groups['informative']} groups that have signal")
    if not row["stepped"] and row["grad_norm"]:
        wrong.append(f"no update was applied, and its gradient has norm {row['grad_norm']}")
    for share, kind in (("all_right", "right"), ("all_wrong", "wrong")):
        if groups[share] and not outcomes[kind]:
            wrong.append(f"{groups[share]} groups are {share} and no response is {kind}")
    without = (batch - groups["informative"] - groups["unscorable"]) / batch, (batch - groups["informative"]) / batch
    if not without[0] - SLACK <= row["frac_reward_zero_std"] <= without[1] + SLACK:
        wrong.append(f"frac_reward_zero_std {row['frac_reward_zero_std']} does not follow from groups {groups}")
    return wrong


def _check_means(row: Row, settings: dict[str, Any]) -> list[str]:
    """Return which means and extremes of a step cannot be of its responses."""
    responses, longest = settings["num_generations"] * settings["problems_per_step"], settings["max_completion_length"]
    least, mean, most = (row[f"completions/{name}_length"] for name in ("min", "mean", "max"))
    wrong = []
    if not 0 <= least <= mean * (1 + SLACK) or not mean <= most * (1 + SLACK) or most > longest:
        wrong.append(f"response lengths {least}, {mean}, {most} are not least, mean and most up to {longest}")
    cut = row["completions/clipped_ratio"] * responses
    if not -SLACK <= cut <= responses + SLACK or abs(cut - round(cut)) > 1e-4:
        wrong.append(f"clipped_ratio {row['completions/clipped_ratio']} is not a count of {responses}")
    return wrong
