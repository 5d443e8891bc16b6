"""The items and the scorers of reasoning-gym, as the grading process uses them.

An item is made again from its address (data set, settings, index), so the row holds plain values only and the scorer
still sees the item's own objects.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import cache
from typing import Any

from assay.errors import ConfigError, InputError
from assay.tasks.submission import NO_ANSWER, RIGHT, WRONG, Mark, Submission

ADDRESS = "reasoning_gym"
"""The column that says which item a problem is."""
_RESERVED = ("seed", "size")


def open_gym(name: str, options: Mapping[str, Any], *, seed: int, size: int) -> Any:
    """Return a data set of reasoning-gym.

    Args:
        name: such as ``"chain_sum"``.
        options: of that data set, but for the seed and the size.
        seed: item ``i`` is drawn from ``seed + i``, whatever the size, for nearly all of them.
        size: how many items it is to have.

    Raises:
        ConfigError: reasoning-gym is not installed, there is no such data set, or it refuses an option.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some of its modules warn when they are compiled
            from reasoning_gym import create_dataset
            from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ConfigError(f"gym:{name} needs reasoning-gym: pip install 'assay[tasks]'") from error
    if name not in DATASETS:
        near = get_close_matches(name, DATASETS, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"it has {len(DATASETS)}, such as chain_sum"
        raise ConfigError(f"gym:{name}: reasoning-gym has no data set {name!r}; {hint}")
    known = [field.name for field in fields(DATASETS[name][1]) if field.name not in _RESERVED]
    if strange := [key for key in options if key not in known]:
        raise ConfigError(f"gym:{name}: no option {strange[0]!r}; it has {', '.join(known)}")
    try:
        return create_dataset(name, seed=seed, size=size, **options)
    except (AssertionError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(f"gym:{name} with {dict(options)}: {error or type(error).__name__}") from error


def gym(submission: Submission) -> Mark:
    """Grade by the item's own scorer: exactly 1 is right, and any lower score is wrong and scores 0.

    Lower scores are not passed on: they reward an answer hidden in a list of answers. What is scored is what stands in
    the last ``<answer>`` tags, or the whole text where there are none.

    Raises:
        InputError: the row is no item of reasoning-gym, or this version makes another item of its address.
    """
    from reasoning_gym.utils import extract_answer

    address = submission.columns.get(ADDRESS)
    if address is None:
        raise InputError(f"the row has no column {ADDRESS!r}; reward 'gym' scores problems of gym:NAME only")
    dataset, item = _item(json.dumps(address))
    if item["question"] != submission.prompt:
        raise InputError("this version of reasoning-gym makes another question of the same address; draw the data anew")
    tagged = extract_answer(submission.text)
    text = (submission.text if tagged is None else tagged).strip()
    if not text:
        return NO_ANSWER
    return RIGHT if dataset.score_answer(text, item) == 1.0 else WRONG


@cache
def _item(address: str) -> tuple[Any, Any]:
    made = json.loads(address)
    dataset = _dataset(json.dumps(made["dataset"]))
    return dataset, dataset[made["index"]]


@cache
def _dataset(address: str) -> Any:
    made = json.loads(address)
    return open_gym(made["name"], made["options"], seed=made["seed"], size=made["size"])
