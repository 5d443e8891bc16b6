"""Problems of reasoning-gym by name, each asked once.

Its item ``i`` is drawn from ``seed + i``, so data sets of neighbouring seeds share all but one item, and small spaces
repeat themselves. Here training and test problems are items of one data set, at different indices and with different
questions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.core.streams import Stream, uniforms
from assay.errors import ConfigError
from assay.tasks.contamination import prompt_key
from assay.tasks.gym_scores import ADDRESS, open_gym
from assay.types import TextProblem

GYM = "gym:"
TRIES = 10
"""Items looked at for each problem asked for, before the space counts as too small."""
SEEDS = 2**31


def draw_gym_problems(data: str, options: Mapping[str, Any], *, seed: int, count: int) -> tuple[list[TextProblem], int]:
    """Return so many problems with different questions, and how many items were looked at for them.

    A problem's number is its item's index; its columns hold the item's address, from which ``reward = "gym"`` scores.

    Args:
        data: such as ``"gym:chain_sum"``.
        options: of that data set.
        seed: names the draw.
        count: at least 1.

    Raises:
        ConfigError: there is no such data set, it refuses an option or fails, or has not so many different questions.
    """
    name, size = data.removeprefix(GYM), TRIES * count + 100
    first = int(uniforms(seed, Stream.DATA, 1, problem=[0], sample=[2]) * SEEDS)
    address = {"name": name, "options": dict(options), "seed": first, "size": size}
    dataset = open_gym(name, options, seed=first, size=size)
    found: dict[str, TextProblem] = {}
    for index in range(size):
        problem = _problem(data, dataset, address, index)
        found.setdefault(prompt_key(problem), problem)
        if len(found) == count:
            return list(found.values()), index + 1
    raise ConfigError(
        f"{data}: only {len(found)} different questions among {size} items, and {count} problems are asked for; "
        "ask for fewer or widen its options"
    )


def _problem(data: str, dataset: Any, address: Mapping[str, Any], index: int) -> TextProblem:
    try:
        item = dataset[index]
    except Exception as error:  # each data set has a generator of its own
        raise ConfigError(f"{data} item {index}: it raised {type(error).__name__}: {error}") from error
    question, answer = item["question"], item["answer"]
    if not isinstance(question, str) or not question.strip():
        raise ConfigError(f"{data} item {index}: its question is {question!r}; expected text")
    columns = {ADDRESS: {"dataset": address, "index": index}}
    return TextProblem(index, question, None if answer is None else str(answer), columns)
