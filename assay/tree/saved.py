"""Worlds in files: what an audit enumerates can be written down, sent to someone else, and audited again.

A file is JSON: plain numbers, nothing that runs. Each problem lists the prefixes after which a token is chosen, the
tokens that may follow each, and one row of logits for each prefix and policy; each response has its reward.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from assay.errors import InputError
from assay.tree.prefix import Grammar, PrefixTree, prefix_tree
from assay.tree.world import TreeProblem, World, default_world
from assay.tree.worlds import far_world, small_world, tool_world

FORMAT = "assay-world-1"
WORLDS: dict[str, Callable[[], World]] = {"small": small_world, "tools": tool_world, "far": far_world}
"""Worlds with a name, besides the default one."""
_POLICIES = ("logits", "logits_ref", "logits_old", "logits_sampler")


def find_world(name: str, *, off_policy: bool = False) -> World:
    """Return the world of a name, or the one that a file holds.

    Args:
        name: one of :data:`WORLDS`, or a path.
        off_policy: whether the default world's responses are drawn from an older policy.

    Raises:
        InputError: there is no such world or file, or only the default one can be made off-policy here.
    """
    if name == "default":
        return default_world(off_policy=off_policy)
    if off_policy:
        raise InputError(f"world {name!r}: only the default world is made off-policy; a file says what draws")
    if name in WORLDS:
        return WORLDS[name]()
    if not Path(name).is_file():
        raise InputError(f"world {name!r}: no such file, and the worlds with a name are default, {', '.join(WORLDS)}")
    return read_world(Path(name))


def world_record(world: World) -> dict[str, Any]:
    """Return a world as plain values, ready for JSON."""
    return {"format": FORMAT, "problems": [_problem_record(problem) for problem in world]}


def read_world(path: Path) -> World:
    """Return the world that a file holds.

    Raises:
        InputError: it cannot be read, is no world, or its numbers do not fit its tree.
    """
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"world {path}: cannot be read as JSON ({error})") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise InputError(f"world {path}: not a world of format {FORMAT!r}")
    try:
        world = tuple(_read_problem(entry) for entry in record["problems"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"world {path}: {type(error).__name__}: {error}") from error
    if not world:
        raise InputError(f"world {path}: it has no problem")
    return world


def _problem_record(problem: TreeProblem) -> dict[str, Any]:
    tree = problem.tree
    prefixes = node_prefixes(tree)
    inner = [prefixes[node] for node in tree.inner.tolist()]
    leaves = [row[:length] for row, length in zip(tree.responses.tolist(), tree.lengths.tolist(), strict=True)]
    rows = {
        name: [[None if value == float("-inf") else value for value in row] for row in made.tolist()]
        for name in _POLICIES
        if (made := getattr(problem, name)) is not None
    }
    return {
        "name": problem.name,
        "tokens": tree.tokens_in_vocabulary,
        "max_length": int(tree.lengths.max()),
        "end": _end(tree),
        "prefixes": inner,
        "allowed": [row.nonzero()[:, 0].tolist() for row in tree.allowed],
        "observed": None if problem.observed is None else problem.observed.tolist(),
        **rows,
        "responses": leaves,
        "reward": problem.reward.tolist(),
    }


def _end(tree: PrefixTree) -> int | None:
    """Return the end token: the last of every response that is shorter than the longest."""
    short = tree.lengths < tree.lengths.max()
    ends = set(tree.responses[short].gather(1, tree.lengths[short, None] - 1)[:, 0].tolist())
    return int(ends.pop()) if len(ends) == 1 else None


def _read_problem(entry: dict[str, Any]) -> TreeProblem:
    allowed = {tuple(prefix): tuple(row) for prefix, row in zip(entry["prefixes"], entry["allowed"], strict=True)}

    def follow(prefix: tuple[int, ...]) -> tuple[int, ...]:
        if prefix not in allowed:
            raise InputError(f"problem {entry['name']!r}: no row for the prefix {list(prefix)}")
        return allowed[prefix]

    tree = prefix_tree(Grammar(entry["tokens"], entry["max_length"], end=entry["end"], allowed=follow))
    prefixes = node_prefixes(tree)
    order = {tuple(prefix): row for row, prefix in enumerate(entry["prefixes"])}
    rows = torch.tensor([order[tuple(prefixes[node])] for node in tree.inner.tolist()])
    responses = {tuple(response): value for response, value in zip(entry["responses"], entry["reward"], strict=True)}
    leaves = [tuple(row[:n]) for row, n in zip(tree.responses.tolist(), tree.lengths.tolist(), strict=True)]
    missing = [leaf for leaf in leaves if leaf not in responses]
    if missing:
        raise InputError(f"problem {entry['name']!r}: no reward for the response {list(missing[0])}")
    made = {name: _logits(entry, name, rows, tree) for name in _POLICIES if entry.get(name) is not None}
    observed = None if entry.get("observed") is None else torch.tensor(entry["observed"])[rows]
    return TreeProblem(
        name=str(entry["name"]),
        tree=tree,
        logits=made["logits"],
        logits_ref=made.get("logits_ref", made["logits"]),
        logits_old=made.get("logits_old", made["logits"]),
        reward=torch.tensor([float(responses[leaf]) for leaf in leaves], dtype=torch.float64),
        logits_sampler=made.get("logits_sampler"),
        observed=observed,
    )


def _logits(entry: dict[str, Any], name: str, rows: Tensor, tree: PrefixTree) -> Tensor:
    values = [[float("-inf") if value is None else float(value) for value in row] for row in entry[name]]
    made = torch.tensor(values, dtype=torch.float64)
    if made.ndim != 2 or made.shape[1] != tree.tokens_in_vocabulary or len(made) != len(rows):
        raise InputError(f"problem {entry['name']!r}: {name} has shape {tuple(made.shape)}, need one row a prefix")
    if name in ("logits", "logits_ref", "logits_old") and not bool(made.isfinite().all()):
        raise InputError(f"problem {entry['name']!r}: {name} has an entry that is not finite")
    return made[rows]


def node_prefixes(tree: PrefixTree) -> list[list[int]]:
    """Return the tokens of every node's prefix, in the order of the nodes."""
    prefixes: list[list[int]] = [[]]
    for parent, token in zip(tree.parent.tolist()[1:], tree.token.tolist()[1:], strict=True):
        prefixes.append([*prefixes[parent], token])
    return prefixes
