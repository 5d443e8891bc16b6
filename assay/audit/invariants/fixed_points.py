"""I6: what is known beforehand must be read exactly: ratio 1 and KL 0 at the start, and no jump over a restart."""

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
from assay.audit.check import TOLERANCE, Check, SubjectError, answers, foreign, verdict_of
from assay.tree.fields import reverse_kl
from assay.tree.world import TreeProblem, World
from assay.tree.worlds import small_world

Metrics = Callable[..., Any]
"""Asks for a batch by parameter name, as a loss does, and returns a mapping of names to numbers: what it would log."""
Exact = Callable[[TreeProblem], float]
"""What a metric must be in the mean over all batches of one group, such as the exact KL of a problem."""
Weights = Mapping[str, Float[Tensor, "I V"]]
"""A policy as trainers hold one: ``"base"`` logits and an ``"adapter"`` that is added to them."""
Start = Callable[[Weights, Weights | None], tuple[Float[Tensor, "I V"], Float[Tensor, "I V"]]]
"""Starts training from initial weights, or resumes from saved ones; returns the policy's and the reference's logits."""

AT_START: Mapping[str, float] = {"ratio": 1.0, "kl": 0.0, "kl_old": 0.0, "clip_fraction": 0.0}
"""Fixed points of the first pass: mean and sequence ratio, KL to the reference and to the old policy, share of tokens
that were clipped."""
WHY = "relative to the value, or to 1; all is float64"


@answers("I6")
def fixed_points(
    metrics: Metrics,
    *,
    at_start: Mapping[str, float] = AT_START,
    exact: Mapping[str, Exact] | None = None,
    world: World | None = None,
    group_size: int = 2,
) -> Check:
    """Check that logged metrics read what is known of them.

    At the start the policy, the policy before the update, the sampler and the reference are one: each metric in
    ``at_start`` must read its value on every batch. Later it is an estimate: the mean of each metric in ``exact`` over
    all groups that the policy can draw must be the value by enumeration.

    Args:
        metrics: called with the parameters it names out of :data:`assay.audit.call.NAMES`.
        at_start: value by name; those that ``metrics`` does not return are left out.
        exact: value of a problem by name, for an on-policy world with a reference that differs.
        world: problems to read metrics in; None takes :func:`assay.tree.worlds.small_world`.
        group_size: responses in a group.
    """
    place, wanted = world or small_world(), exact or {}
    began = _began(place)
    gaps, known = [], set()
    for batch in (make_batch(began, groups) for groups in _companies(began, group_size)):
        reading = _read(metrics, batch)
        for name in at_start.keys() & reading.keys():
            known.add(name)
            line = f"{name} reads {reading[name]:.6g} at the start, not {at_start[name]:g}: {_described(batch)}"
            gaps.append((_gap(reading[name], at_start[name]), line))
    for number, problem in enumerate(place if wanted else ()):
        means = _means(metrics, place, number, group_size)
        for name in wanted.keys() & means.keys():
            known.add(name)
            right = wanted[name](problem)
            line = f"{name} is {means[name]:.6g} in the mean and {right:.6g} by enumeration: problem {problem.name!r}"
            gaps.append((_gap(means[name], right), line))
    if not known or wanted.keys() - known:
        sought = sorted(wanted.keys() - known) or list(at_start)
        raise SubjectError(f"the metrics return no {' and no '.join(sought)}")
    detail = f"{', '.join(sorted(known))} against what is known of them"
    remedy = "compare like with like: one path, one processing of the logits, one number a response"
    return _verdict(detail, gaps, f"{len(gaps)} readings", remedy)


@answers("I6")
def reference_after_restart(start: Start, *, world: World | None = None) -> Check:
    """Check which policy the reference is: the one that training began from, at step 0 and after a restart.

    Training begins from base weights with an adapter that was trained before. So the KL to the reference is zero at
    step 0; and when a run resumes from what it saved, the KL is what it was before the interruption.

    Args:
        start: called with the initial weights and None, or what was saved; a trainer without adapters reads the sum.
        world: problems whose policies are trained; None takes :func:`assay.tree.worlds.small_world`.
    """
    gaps = []
    for problem in world or small_world():
        adapter = problem.logits_ref - problem.logits
        begun: Weights = {"base": problem.logits, "adapter": adapter}
        saved: Weights = {"base": problem.logits, "adapter": adapter + problem.logits.roll(1, 0)}
        for when, state in (("at step 0", None), ("after a restart", saved)):
            now = _sum(begun if state is None else state)
            policy, reference = _started(start, begun, state)
            apart = _kl(problem, policy, now)
            gaps.append((_gap(apart, 0.0), f"{problem.name}, {when}: the policy is {apart:.6g} nats from its weights"))
            made, right = _kl(problem, policy, reference), _kl(problem, now, _sum(begun))
            line = f"{problem.name}, {when}: KL to the reference is {made:.6g}, to the first policy {right:.6g}"
            gaps.append((_gap(made, right), line))
    remedy = "freeze a copy of the policy that training begins from, before anything is loaded over it"
    return _verdict("KL to the reference at step 0 and after a restart", gaps, "problems x 2 moments", remedy)


def _began(world: World) -> World:
    """Return the world at the start, with every policy the same."""
    return tuple(
        dataclasses.replace(problem, logits_ref=problem.logits, logits_old=problem.logits, logits_sampler=None)
        for problem in world
    )


def _companies(world: World, size: int) -> list[list[Group]]:
    """Return one group of each problem, all of these together, and twice as many."""
    first, second = (
        [(number, (torch.arange(size) * 3 + shift) % len(problem.tree.path)) for number, problem in enumerate(world)]
        for shift in (0, 1)
    )
    return [*([group] for group in first), first, first + second]


def _read(metrics: Metrics, batch: Batch) -> dict[str, float]:
    given = {name: made.detach() for name, made in arguments(metrics, batch, batch.logits).items()}
    made = foreign("the metrics", metrics, **given)
    if not isinstance(made, Mapping) or not made:
        raise SubjectError(f"the metrics returned {type(made).__name__}; they must return numbers by name")
    return {name: _number(name, value) for name, value in made.items()}


def _number(name: str, value: object) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value.detach())
    if isinstance(value, bool) or not isinstance(value, int | float):
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise SubjectError(f"the metric {name!r} is {shape}; it must be one number")
    return float(value)


def _means(metrics: Metrics, world: World, number: int, size: int) -> dict[str, float]:
    """Return the mean of each metric over every group of one problem, in every order."""
    chance = world[number].sampler_logp.exp()
    means: dict[str, float] = {}
    for members in itertools.product(range(len(chance)), repeat=size):
        group = torch.tensor(members)
        weight = math.prod(chance[group].tolist())
        for name, value in _read(metrics, make_batch(world, [(number, group)])).items():
            means[name] = means.get(name, 0.0) + weight * value
    return means


def _described(batch: Batch) -> str:
    return f"batch of {len(batch.reward)} responses in {int(batch.group.max()) + 1} groups"


def _started(start: Start, begun: Weights, saved: Weights | None) -> tuple[Tensor, Tensor]:
    """Return both logits, made from copies: a trainer may change what it is given."""
    copies = [state and {name: value.clone() for name, value in state.items()} for state in (begun, saved)]
    made = foreign("the trainer", start, *copies)
    shape = begun["base"].shape
    if not (isinstance(made, tuple) and len(made) == 2 and all(isinstance(one, Tensor) for one in made)):
        raise SubjectError(f"the trainer returned {type(made).__name__}; it must return two tensors of logits")
    if any(one.shape != shape for one in made):
        shapes = " and ".join(str(tuple(one.shape)) for one in made)
        raise SubjectError(f"the trainer returned logits of shapes {shapes}; they must be {tuple(shape)}")
    return made[0].detach(), made[1].detach()


def _sum(weights: Weights) -> Float[Tensor, "I V"]:
    return weights["base"] + weights["adapter"]


def _kl(problem: TreeProblem, logits: Float[Tensor, "I V"], logits_ref: Float[Tensor, "I V"]) -> float:
    return float(reverse_kl(dataclasses.replace(problem, logits_ref=logits_ref), logits))


def _gap(made: float, right: float) -> float:
    gap = abs(made - right) / max(1.0, abs(right))
    return gap if math.isfinite(gap) else math.inf


def _verdict(detail: str, gaps: list[tuple[float, str]], exactness: str, remedy: str) -> Check:
    worst = max(gap for gap, _ in gaps)
    findings = tuple(line for gap, line in gaps if not gap <= TOLERANCE)
    return verdict_of(
        "I6", detail, findings, error=worst, tolerance=TOLERANCE, why=WHY, exactness=exactness, remedy=remedy
    )
