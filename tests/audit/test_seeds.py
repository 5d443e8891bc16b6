"""I12 on seed schemes with and without collisions."""

import random
from itertools import count

import numpy as np
import pytest
import torch

from assay.audit.invariants.seeds import seeds
from assay.core.streams import Stream, uniforms
from assay.verdicts import Verdict


def addressed(seed, step, problem, member):
    return uniforms(seed, Stream.ROLLOUT, 3, step=step, problem=[problem], sample=[member])


def as_text(seed, step, row):
    return f"{seed}/{step}/{row}"


def by_rank(seed, step, rank, local):
    return ((seed * 100 + step) * 100 + rank) * 100 + local


@pytest.mark.parametrize("scheme", [addressed, as_text, by_rank])
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_distinct_reproducible_schemes_hold(scheme, ranks):
    found = seeds(scheme, ranks=ranks)
    assert found.verdict is Verdict.HOLDS, found
    assert "24 rollouts" in found.exactness


def test_collisions_are_named_by_both_addresses():
    found = seeds(lambda seed, step, rank: seed + step + rank, ranks=2, problems=1, members=2, steps=2)
    assert found.findings[0] == "step 0, problem 0, member 1, rank 1 and step 1, problem 0, member 0, rank 0 share 1"


@pytest.mark.parametrize(
    "scheme",
    [
        lambda seed, step, problem: (seed, step, problem),
        lambda seed, step, member: (seed, step, member),
        lambda seed, problem, member: (seed, problem, member),
        lambda seed, step, local: (seed, step, local),
        lambda seed, step, chunk, local: (seed, step, tuple(chunk[: local + 1])),
    ],
    ids=["no member", "no problem", "no step", "no rank", "no rank, in a chunk"],
)
def test_a_part_of_the_address_that_is_left_out_is_missed(scheme):
    found = seeds(scheme, problems=2, members=4, ranks=4)
    assert found.verdict is Verdict.DISAGREES and " share " in found.findings[0]


def test_what_a_second_run_does_not_repeat():
    clock = count()
    found = seeds(lambda seed: next(clock) * 10 + seed)
    assert "0 in one run and 240 in the next" in found.findings[0]
    assert seeds(lambda seed: random.random()).verdict is Verdict.DISAGREES


def test_a_run_seed_that_is_not_read():
    found = seeds(lambda step, row: (step, row))
    assert found.findings == ("run seeds 0 and 1 give the same: the seed is not read",)


@pytest.mark.parametrize(
    ("scheme", "shared"),
    [
        (lambda seed, step, problem, member, rank: (seed if rank == 0 else 0, step, problem, member), 12),
        (lambda seed, step, row: seed + 12 * step + row, 23),
        (lambda seed, row: seed + row, 11),
        (lambda seed, step, row: (seed // 2, step, row) if row == 5 else (seed, step, row), 2),
    ],
    ids=["read on rank 0 alone", "added up", "added up in one step", "forgotten in one row"],
)
def test_runs_with_different_seeds_share_none(scheme, shared):
    """By counting: 12 rows a step, of which rank 0 has half; sums overlap in all but the last one of the other run."""
    steps = 1 if shared == 11 else 2
    found = seeds(scheme, steps=steps)
    assert found.verdict is Verdict.DISAGREES and len(found.findings) == 1
    assert found.findings[0].startswith(f"runs with seeds 0 and 1 share {shared} of {12 * steps}: step 0, problem ")


def test_sums_hold_where_run_seeds_are_far_enough_apart():
    scheme = lambda seed, step, row: seed + 12 * step + row  # noqa: E731
    assert seeds(scheme, run_seeds=(0, 24)).verdict is Verdict.HOLDS
    assert seeds(scheme, run_seeds=(0, 23)).verdict is Verdict.DISAGREES


def test_seeds_that_cannot_be_hashed_are_compared_all_the_same():
    assert seeds(lambda seed, step, row: ([seed], step, row)).verdict is Verdict.HOLDS
    assert seeds(lambda seed, step, row: [seed, step]).verdict is Verdict.DISAGREES


def test_global_generators_are_left_as_they_were():
    def seeding(seed, step, row):
        torch.manual_seed(seed * 1000 + step * 100 + row)
        np.random.seed(row)
        return torch.rand(4)

    before = torch.get_rng_state(), np.random.get_state()[1]
    assert seeds(seeding).verdict is Verdict.HOLDS
    assert torch.equal(torch.get_rng_state(), before[0]) and np.array_equal(np.random.get_state()[1], before[1])


def test_what_cannot_be_audited_says_why():
    for scheme, options, reason in [
        (lambda seed, worker: seed, {}, "asks for 'worker'; it can have seed, step, problem"),
        (lambda seed: 1 / 0, {}, "ZeroDivisionError"),
        (as_text, {"ranks": 20}, "20 ranks"),
        (as_text, {"members": 0}, "0 members"),
        (as_text, {"run_seeds": (3, 3)}, "run seeds (3, 3): expected two different ones"),
        (lambda seed: torch.zeros(3, device="meta"), {}, "reading what the seed scheme returned raised"),
    ]:
        found = seeds(scheme, **options)
        assert found.verdict is Verdict.COULD_NOT_RUN and reason in found.detail
