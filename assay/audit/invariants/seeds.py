"""I12: does every rollout have a seed of its own, and the same one when the run is repeated?

A scheme is any function from where a rollout stands to its seed, or to what is drawn there. It is asked for all rows of
a few steps, dealt to ranks as trainers deal them: problem after problem, in consecutive chunks.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.audit.check import Check, SubjectError, answers, foreign, verdict_of
from assay.audit.invariants.byname import call_by_name
from assay.audit.invariants.findings import few

Address = dict[str, Any]
SHOWN = ("step", "problem", "member", "rank")


@answers("I12")
def seeds(
    seed_of: Callable[..., Any],
    *,
    ranks: int = 2,
    problems: int = 3,
    members: int = 4,
    steps: int = 2,
    run_seeds: tuple[int, int] = (0, 1),
) -> Check:
    """Check a seed scheme: distinct for all rollouts of a run, the same in a second run, others for another run seed.

    A seed that two runs share is a finding too: the runs are no independent repetitions. A scheme that adds its parts
    up needs run seeds that lie as far apart as it is used with.

    With ``members=ranks, problems=1, steps=1`` each rank holds one row: that is the setting for what is seeded once
    for each process or engine. Within one process, a seed made from Python's ``hash`` of a text looks reproducible.

    Args:
        seed_of: called by parameter name from ``seed`` (of the run), ``step``, ``problem``, ``member`` (which response
            of the problem), ``row`` (in the whole batch), ``rank``, ``local`` (row within the rank's chunk), ``chunk``
            (the problem of each row of that chunk), and the counts ``ranks``, ``members``, ``problems``; returns a
            seed, or whatever is drawn: anything that can be compared, or a tensor.
        ranks: processes, replicas or workers.
        problems: of a batch.
        members: responses to a problem.
        steps: of the run.
        run_seeds: two different ones, the next to each other unless given.
    """
    if min(ranks, problems, members, steps) < 1 or ranks > problems * members:
        raise SubjectError(f"{ranks} ranks, {problems} problems, {members} members, {steps} steps: expected 1 or more")
    if run_seeds[0] == run_seeds[1]:
        raise SubjectError(f"run seeds {run_seeds}: expected two different ones")
    addresses = list(_addresses(ranks, problems, members, steps))
    with _own_generators():
        first, again, other = (
            [_key(seed_of, {"seed": seed, **address}) for address in addresses]
            for seed in (run_seeds[0], run_seeds[0], run_seeds[1])
        )
    changed = (
        f"{_place(address)}: {a} in one run and {b} in the next, both with run seed {run_seeds[0]}"
        for address, a, b in zip(addresses, first, again, strict=True)
        if a != b
    )
    findings = [*few(_shared(addresses, first)), *few(changed), *_across(addresses, first, other, run_seeds)]
    return verdict_of(
        "I12",
        "distinct for each rollout, the same in a second run, others for another run seed",
        findings,
        exactness=f"{len(addresses)} rollouts (steps {steps}, problems {problems}, members {members}, ranks {ranks})",
        remedy="derive the seed from the whole address: run seed, step, problem and member, counted over all ranks",
    )


def _addresses(ranks: int, problems: int, members: int, steps: int) -> Iterator[Address]:
    batch = list(itertools.product(range(problems), range(members)))
    bounds = [rank * len(batch) // ranks for rank in range(ranks + 1)]
    for step, rank in itertools.product(range(steps), range(ranks)):
        rows = range(bounds[rank], bounds[rank + 1])
        chunk = [batch[row][0] for row in rows]
        for row in rows:
            problem, member = batch[row]
            where = {"step": step, "problem": problem, "member": member, "row": row, "rank": rank}
            counts = {"ranks": ranks, "members": members, "problems": problems}
            yield {**where, "local": row - rows[0], "chunk": list(chunk), **counts}


def _shared(addresses: list[Address], made: list[Hashable]) -> Iterator[str]:
    """Yield each rollout that has what an earlier one has, with the earliest such."""
    earliest: dict[Hashable, Address] = {}
    for address, key in zip(addresses, made, strict=True):
        if key in earliest:
            yield f"{_place(earliest[key])} and {_place(address)} share {key}"
        earliest.setdefault(key, address)


def _across(
    addresses: list[Address], first: list[Hashable], other: list[Hashable], run_seeds: tuple[int, int]
) -> Iterator[str]:
    """Yield how two runs overlap that have different run seeds."""
    if first == other:
        yield f"run seeds {run_seeds[0]} and {run_seeds[1]} give the same: the seed is not read"
        return
    where = dict(zip(reversed(first), reversed(addresses), strict=True))
    both = [(where[key], address, key) for address, key in zip(addresses, other, strict=True) if key in where]
    if both:
        one, two, key = both[0]
        yield (
            f"runs with seeds {run_seeds[0]} and {run_seeds[1]} share {len(both)} of {len(addresses)}: "
            f"{_place(one)} of one and {_place(two)} of the other have {key}"
        )


def _key(seed_of: Callable[..., Any], offered: Address) -> Hashable:
    """Return what a scheme gives for an address, as something that can be compared."""
    made = call_by_name("the seed scheme", seed_of, offered)
    if isinstance(made, Tensor | np.ndarray):
        made = foreign("reading what the seed scheme returned", made.tolist)
    try:
        hash(made)
    except Exception:
        return str(foreign("naming what the seed scheme returned", repr, made))
    key: Hashable = made
    return key


def _place(address: Address) -> str:
    return ", ".join(f"{name} {address[name]}" for name in SHOWN)


@contextmanager
def _own_generators() -> Iterator[None]:
    """Put the global random generators back as they were: a scheme may seed them."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])
