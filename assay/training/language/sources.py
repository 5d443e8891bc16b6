"""How a recipe names its model, its problems and its reward, and which of these go together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from assay.training.language.options import GradingOptions, TaskOptions

REWARDS = ("exact", "maths", "gym")
"""Rewards by name; any other is a function."""
GYM = "gym:"
PACKAGE = "package:"
FILES = (".jsonl", ".csv", ".parquet")
FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
"""``module:function``."""


def located(settings: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Return settings with the paths among them absolute; names of packages, datasets, functions and models stay.

    A model is a path when it looks like one (``./``, ``../``, ``/``, ``~``) or when there is something of its name.

    Args:
        settings: nested settings.
        base: directory that relative paths start from.
    """
    made = dict(settings)
    if isinstance(made.get("model"), str):
        made["model"] = _model_at(made["model"], base)
    if isinstance(made.get("data"), str):
        made["data"] = _data_at(made["data"], base)
    task = made.get("task")
    if isinstance(task, Mapping) and isinstance(task.get("test_data"), str):
        made["task"] = {**task, "test_data": _data_at(task["test_data"], base)}
    return made


def mismatches(data: str, reward: str, task: TaskOptions, grading: GradingOptions) -> Iterator[str]:
    """Say what is wrong or contradictory in where problems and rewards come from."""
    for name, source in (("data", data), ("task.test_data", task.test_data)):
        if source and not _is_source(source):
            yield f"{name} = {source!r}: expected a file ending in {', '.join(FILES)}, or {GYM}NAME, or module:function"
    if reward not in REWARDS and not FUNCTION.fullmatch(reward):
        yield f"reward = {reward!r}: expected one of {', '.join(REWARDS)}, or a function as module:function"
    if reward == "gym":
        for name, source in (("data", data), ("task.test_data", task.test_data)):
            if source and not source.startswith(GYM):
                yield (
                    f"reward = 'gym' cannot grade {name} = {source!r}: it needs the items of a reasoning-gym dataset; "
                    f"write {name} = '{GYM}NAME', or another reward"
                )
    yield from _without_effect(data, reward, task, grading)


def _without_effect(data: str, reward: str, task: TaskOptions, grading: GradingOptions) -> Iterator[str]:
    gym = data.startswith(GYM)
    if task.options and not gym:
        yield f"task.options can do nothing: data = {data!r} is no reasoning-gym dataset; leave them out"
    if gym and not task.train_problems:
        yield f"task.train_problems = 0: {data} makes as many problems as are asked for; say how many, 1 or more"
    if grading.convention != "auto" and reward in REWARDS:
        yield (
            f"grading.convention = {grading.convention!r} can do nothing: reward = {reward!r} is no function of yours; "
            "leave it out"
        )


def _is_source(source: str) -> bool:
    if source.startswith(GYM):
        return len(source) > len(GYM)
    return FUNCTION.fullmatch(source) is not None or source.lower().endswith(FILES)


def _model_at(model: str, base: Path) -> str:
    if not model or model.startswith(PACKAGE):
        return model
    path = base / Path(model).expanduser()
    return str(path.resolve()) if model.startswith((".", "/", "~")) or path.exists() else model


def _data_at(data: str, base: Path) -> str:
    if not data or data.startswith(GYM) or FUNCTION.fullmatch(data):
        return data
    return str((base / Path(data).expanduser()).resolve())
