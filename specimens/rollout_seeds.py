"""Two responses of one group that share a seed, and so are the same response."""

from __future__ import annotations

from functools import partial

import torch

from assay.audit.invariants.seeds import seeds
from specimens.bench import Specimen

ONCE_FOR_EACH_PROCESS = partial(seeds, ranks=4, problems=1, members=4, steps=1, run_seeds=(0, 1000))
"""Both reports add the rank to the seed, which keeps runs apart where their seeds are farther apart than the ranks."""


def completion(seed: int) -> tuple[int, ...]:
    """Draw a response from a generator that a process seeded when it began."""
    return tuple(torch.randint(1000, (8,), generator=torch.Generator().manual_seed(seed)).tolist())


def seeded_alike(seed: int) -> tuple[int, ...]:
    return completion(seed)


def seeded_by_process(seed: int, rank: int) -> tuple[int, ...]:
    return completion(seed + rank)


def engine_seed(seed: int) -> int:
    return seed


def engine_seed_of_replica(seed: int, rank: int) -> int:
    return seed + rank


def address(seed: int, step: int, problem: int, rollout: int) -> int:
    """Return one number for an address whose parts stay below 1,000."""
    return ((seed * 1000 + step) * 1000 + problem) * 1000 + rollout


def counted_within_the_chunk(seed: int, step: int, problem: int, chunk: list[int], local: int) -> int:
    """Number a rollout by the earlier ones of its problem in the worker's chunk."""
    return address(seed, step, problem, chunk[:local].count(problem))


def counted_within_the_batch(seed: int, step: int, problem: int, member: int) -> int:
    return address(seed, step, problem, member)


SPECIMENS = (
    Specimen("SD-01", ONCE_FOR_EACH_PROCESS, seeded_alike, seeded_by_process),
    Specimen("SD-02", ONCE_FOR_EACH_PROCESS, engine_seed, engine_seed_of_replica),
    Specimen("SD-03", seeds, counted_within_the_chunk, counted_within_the_batch),
)
