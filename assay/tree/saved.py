"""Worlds in files: what an audit enumerates can be written down, sent to someone else, and audited again.

A file is JSON: plain numbers, nothing that runs. Each problem lists the prefixes after which a token is chosen, the
tokens that may follow each, and one row of logits for each prefix and policy; each response has its reward.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, StrictInt, ValidationError
from torch import Tensor

from assay.errors import InputError
from assay.tree.prefix import Grammar, PrefixTree, prefix_tree
from assay.tree.world import TreeProblem, World, default_world
from assay.tree.worlds import far_world, small_world, tool_world

FORMAT = "assay-world-1"
WORLDS: dict[str, Callable[[], World]] = {"small": small_world, "tools": tool_world, "far": far_world}
"""Worlds with a name, besides the default one."""

Token = Annotated[StrictInt, Field(ge=0, lt=100_000)]
Row = list[FiniteFloat]


class SavedProblem(BaseModel):
    """One problem of a file.

    Attributes:
        name: for messages.
        tokens: size of the response vocabulary.
        max_length: longest response.
        end: the end token, if there is one.
        prefixes: after which a token follows; the empty one too, in any order.
        allowed: tokens that may follow each prefix.
        logits: of the policy after each prefix.
        logits_ref: of the reference; the policy's own where it is missing.
        logits_old: of the policy when the update began; the same.
        logits_sampler: of what draws the responses, null where it never goes; ``logits_old`` where it is missing.
        observed: whether the environment speaks after a prefix.
        critic: what a critic says of each prefix.
        responses: all of them, in any order.
        reward: of each.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    tokens: Annotated[StrictInt, Field(ge=1, le=100_000)]
    max_length: Annotated[StrictInt, Field(ge=1, le=1_000)]
    end: Token | None = None
    prefixes: list[list[Token]]
    allowed: list[list[Token]]
    logits: list[Row]
    logits_ref: list[Row] | None = None
    logits_old: list[Row] | None = None
    logits_sampler: list[list[FiniteFloat | None]] | None = None
    observed: list[bool] | None = None
    critic: Row | None = None
    responses: list[list[Token]]
    reward: Row


class SavedWorld(BaseModel):
    """A file: its format and its problems, of one vocabulary."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: Literal["assay-world-1"]
    problems: Annotated[list[SavedProblem], Field(min_length=1)]


def find_world(name: str, *, off_policy: bool = False) -> World:
    """Return the world of a name, or the one that a file holds.

    Args:
        name: one of :data:`WORLDS`, ``"default"``, or a path.
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
        saved = SavedWorld.model_validate(json.loads(path.read_text()))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(f"world {path}: {place or 'the file'}: {first['msg']}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"world {path}: cannot be read as JSON ({error})") from error
    try:
        world = tuple(_read_problem(entry) for entry in saved.problems)
    except InputError as error:
        raise InputError(f"world {path}: {error}") from error
    if len({entry.tokens for entry in saved.problems}) > 1:
        raise InputError(f"world {path}: its problems have vocabularies of different sizes; a batch has one")
    return world


def _problem_record(problem: TreeProblem) -> dict[str, Any]:
    tree = problem.tree
    prefixes = tree.prefixes
    sampler = problem.logits_sampler
    return {
        "name": problem.name,
        "tokens": tree.tokens_in_vocabulary,
        "max_length": int(tree.lengths.max()),
        "end": tree.end,
        "prefixes": [prefixes[node] for node in tree.inner.tolist()],
        "allowed": [row.nonzero()[:, 0].tolist() for row in tree.allowed],
        "logits": problem.logits.tolist(),
        "logits_ref": problem.logits_ref.tolist(),
        "logits_old": problem.logits_old.tolist(),
        "logits_sampler": None if sampler is None else [_nulls(row) for row in sampler.tolist()],
        "observed": None if problem.observed is None else problem.observed.tolist(),
        "critic": problem.value.tolist(),
        "responses": [row[:n] for row, n in zip(tree.responses.tolist(), tree.lengths.tolist(), strict=True)],
        "reward": problem.reward.tolist(),
    }


def _nulls(row: list[float]) -> list[float | None]:
    return [None if value == -math.inf else value for value in row]


def _read_problem(entry: SavedProblem) -> TreeProblem:
    def wrong(what: str) -> InputError:
        return InputError(f"problem {entry.name!r}: {what}")

    prefixes = [tuple(prefix) for prefix in entry.prefixes]
    if len(set(prefixes)) < len(prefixes) or len(entry.allowed) != len(prefixes):
        raise wrong("need each prefix once, and a row of allowed tokens for each")
    allowed = {prefix: tuple(row) for prefix, row in zip(prefixes, entry.allowed, strict=True)}

    def follow(prefix: tuple[int, ...]) -> tuple[int, ...]:
        if prefix not in allowed:
            raise wrong(f"no row for the prefix {list(prefix)}")
        return allowed[prefix]

    tree = prefix_tree(Grammar(entry.tokens, entry.max_length, end=entry.end, allowed=follow))
    at = {prefix: row for row, prefix in enumerate(prefixes)}
    every = tree.prefixes
    rows = torch.tensor([at[tuple(every[node])] for node in tree.inner.tolist()])
    if len(rows) != len(prefixes):
        raise wrong(f"{len(prefixes)} prefixes, of which the grammar reaches {len(rows)}")
    reward = _rewards(entry, tree, wrong)

    def table(name: str) -> Tensor | None:
        values = getattr(entry, name)
        if values is None:
            return None
        if len(values) != len(rows) or any(len(row) != entry.tokens for row in values):
            raise wrong(f"{name} needs one row a prefix, of {entry.tokens} numbers")
        return torch.tensor([[-math.inf if v is None else v for v in row] for row in values], dtype=torch.float64)[rows]

    logits, reference, old, sampler = (table(f"logits{suffix}") for suffix in ("", "_ref", "_old", "_sampler"))
    assert logits is not None
    if sampler is not None and not bool((sampler.isfinite() & tree.allowed).any(1).all()):
        raise wrong("logits_sampler leaves no token after some prefix")
    return TreeProblem(
        name=entry.name,
        tree=tree,
        logits=logits,
        logits_ref=logits if reference is None else reference,
        logits_old=logits if old is None else old,
        reward=reward,
        logits_sampler=sampler,
        observed=_observed(entry, tree, rows, wrong),
        critic=None if entry.critic is None else _per_prefix(entry.critic, rows, "critic", wrong),
    )


def _rewards(entry: SavedProblem, tree: PrefixTree, wrong: Callable[[str], InputError]) -> Tensor:
    responses = [tuple(response) for response in entry.responses]
    if len(responses) != len(entry.reward) or len(set(responses)) < len(responses):
        raise wrong("need each response once, and a reward for each")
    rewards = dict(zip(responses, entry.reward, strict=True))
    leaves = [tuple(row[:n]) for row, n in zip(tree.responses.tolist(), tree.lengths.tolist(), strict=True)]
    if set(leaves) != set(responses):
        odd = sorted(set(leaves) ^ set(responses))[0]
        raise wrong(f"response {list(odd)} is in the grammar or in the file, and not in both")
    if len(leaves) < 2:
        raise wrong("it has one response; nothing can be learned there")
    return torch.tensor([rewards[leaf] for leaf in leaves], dtype=torch.float64)


def _observed(entry: SavedProblem, tree: PrefixTree, rows: Tensor, wrong: Callable[[str], InputError]) -> Tensor | None:
    if entry.observed is None:
        return None
    observed = _per_prefix(entry.observed, rows, "observed", wrong)
    if bool((tree.allowed.sum(1)[observed] != 1).any()):
        raise wrong("observed: where the environment speaks, a single token may follow")
    if bool(observed.all()):
        raise wrong("observed: the policy never chooses a token")
    return observed


def _per_prefix(values: list[Any], rows: Tensor, name: str, wrong: Callable[[str], InputError]) -> Tensor:
    if len(values) != len(rows):
        raise wrong(f"{name} needs one entry a prefix")
    kind = torch.bool if isinstance(values[0], bool) else torch.float64
    return torch.tensor(values, dtype=kind)[rows]
