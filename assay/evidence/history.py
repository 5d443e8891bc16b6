"""Does a run's history add up? Every planned step is there once, in order, and its numbers agree with each other."""

from __future__ import annotations

import math
from typing import Any

RETURN_TOLERANCE = 1e-5
"""Float32 means of one batch: ``return`` against ``strict_reward - beta * log_ratio``."""


def check_history(rows: list[dict[str, Any]], config: dict[str, Any], results: dict[str, Any]) -> list[str]:
    """Return what is wrong with the recorded steps, one line a finding.

    Args:
        rows: ``metrics.jsonl``, one record a step.
        config: ``config.toml``.
        results: ``results.json``; its ``spent`` must be what the rows add up to.
    """
    warmup, rl = config["warmup"], config["rl"]
    if len(rows) != warmup["steps"] + rl["steps"]:
        planned = f"config.toml plans {warmup['steps']} warm-up and {rl['steps']} RL steps"
        return [f"metrics.jsonl: {len(rows)} steps recorded, {planned}"]
    findings = check_rows(rows, config)
    if findings:
        return findings
    history = [row for row in rows if row["phase"] == "rl"]
    spent = {
        "warmup_steps": len(rows) - len(history),
        "rl_steps": len(history),
        "training_trajectories": sum(row["trajectories"] for row in history),
        "zero_signal_groups": sum(row["zero_signal_groups"] for row in history),
        "zero_signal_steps": sum(not row["stepped"] for row in history),
    }
    for name, value in spent.items():
        if results["spent"][name] != value:
            findings.append(f"results.json: spent.{name} is {results['spent'][name]}, metrics.jsonl adds up to {value}")
    return findings


def check_rows(rows: list[dict[str, Any]], config: dict[str, Any]) -> list[str]:
    """Return what is wrong with the steps recorded so far: each must be the planned one, and consistent in itself."""
    warmup = config["warmup"]["steps"]
    expected = [("warmup", n + 1) if n < warmup else ("rl", n + 1 - warmup) for n in range(len(rows))]
    found = [(row["phase"], row["step"]) for row in rows]
    if found != expected:
        first = next(i for i, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1])
        where = f"line {first + 1} is {found[first]}, expected {expected[first]}"
        return [f"metrics.jsonl: not the planned steps in order: {where}"]
    findings = []
    for number, row in enumerate(rows, 1):
        problems = _check_row(row, config)
        findings += [f"metrics.jsonl: line {number}, {row['phase']} step {row['step']}: {what}" for what in problems]
    return findings


def _check_row(row: dict[str, Any], config: dict[str, Any]) -> list[str]:
    """Return what is inconsistent within one step's record."""
    settings = config[row["phase"]]
    wrong = []
    if not all(math.isfinite(value) for value in row.values() if isinstance(value, float)):
        wrong.append("a value is not finite")
    raw, clipped = row["grad_norm"], row["clipped_grad_norm"]
    if not 0 <= clipped <= min(raw, settings["max_grad_norm"]) * (1 + 1e-6):
        wrong.append(f"clipped gradient norm {clipped} does not follow from the raw norm {raw}")
    if row["phase"] == "warmup":
        return wrong
    size, batch = settings["num_generations"], settings["problems_per_step"]
    first = (row["step"] - 1) * batch % config["task"]["train_problems"]
    if len(row["problems"]) != batch or row["problems"] != list(range(first, first + batch)):
        wrong.append(f"problems {row['problems']} are not the cycle's next {batch}")
    if row["trajectories"] != size * batch:
        wrong.append(f"{row['trajectories']} trajectories, planned {size * batch}")
    if not 0 <= row["strict_reward"] <= 1 + 1e-6:
        wrong.append(f"strict reward {row['strict_reward']} is outside [0, 1]")
    right = row["strict_reward"] * size * batch
    if abs(right - round(right)) > 1e-4:
        wrong.append(f"strict reward {row['strict_reward']} is not a count of {size * batch}")
    shaped = row["strict_reward"] - settings["beta"] * row["log_ratio"]
    if abs(shaped - row["return"]) > RETURN_TOLERANCE * (1 + abs(shaped)):
        wrong.append(f"return {row['return']} is not strict reward - beta * log-ratio = {shaped:.6g}")
    if row["stepped"] != (row["zero_signal_groups"] < batch):
        wrong.append(f"stepped is {row['stepped']} with {row['zero_signal_groups']} of {batch} groups without signal")
    return wrong
