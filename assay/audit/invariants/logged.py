"""Reading what a trainer would log, on small batches of a world."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.call import Batch, Group, arguments, make_batch
from assay.audit.check import SubjectError, foreign
from assay.audit.invariants.readings import number_of
from assay.core.streams import Stream, normals
from assay.tree.world import TreeProblem, World

Metrics = Callable[..., Any]
"""Asks for a batch by parameter name, as a loss does, and returns a mapping of names to numbers: what it would log."""


def apart(world: World) -> World:
    """Return the world with an old policy and a reference that are far from the policy and from each other."""

    def elsewhere(problem: TreeProblem, number: int) -> Float[Tensor, "I V"]:
        moved = normals(number, Stream.INIT, problem.logits.numel()).view(problem.logits.shape)
        return problem.logits.detach() + moved

    return tuple(
        dataclasses.replace(
            problem, logits_old=elsewhere(problem, 1), logits_ref=elsewhere(problem, 2), logits_sampler=None
        )
        for problem in world
    )


def together(world: World) -> World:
    """Return the world at the start, with every policy the same."""
    return tuple(
        dataclasses.replace(problem, logits_ref=problem.logits, logits_old=problem.logits, logits_sampler=None)
        for problem in world
    )


def companies(world: World, size: int) -> list[list[Group]]:
    """Return one group of each problem, all of these together, and twice as many."""
    first, second = (
        [(number, (torch.arange(size) * 3 + shift) % len(problem.tree.path)) for number, problem in enumerate(world)]
        for shift in (0, 1)
    )
    return [*([group] for group in first), first, first + second]


def read(metrics: Metrics, batch: Batch) -> dict[str, float]:
    """Return what is logged of a batch.

    Raises:
        SubjectError: the metrics raise, or return anything but numbers by name.
    """
    given = foreign("the metrics", arguments, metrics, batch, batch.logits)
    given = {name: made.detach() for name, made in given.items()}
    made = foreign("the metrics", metrics, **given)
    if not isinstance(made, Mapping) or not made:
        raise SubjectError(f"the metrics returned {type(made).__name__}; they must return numbers by name")
    return {name: number_of(f"the metric {name!r}", value) for name, value in made.items()}


def mean_over_groups(metrics: Metrics, world: World, number: int, size: int) -> dict[str, float]:
    """Return the mean of each metric over every group of one problem, in every order."""
    chance = world[number].sampler_logp.exp()
    means: dict[str, float] = {}
    for members in itertools.product(range(len(chance)), repeat=size):
        group = torch.tensor(members)
        weight = math.prod(chance[group].tolist())
        for name, value in read(metrics, make_batch(world, [(number, group)])).items():
            means[name] = means.get(name, 0.0) + weight * value
    return means


def described(batch: Batch) -> str:
    """Return how a message names a batch."""
    return f"batch of {len(batch.reward)} responses in {int(batch.group.max()) + 1} groups"
