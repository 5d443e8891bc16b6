"""I6: what is known beforehand must be read exactly: ratio 1 and KL 0 at the start, and no jump over a restart."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.call import make_batch
from assay.audit.check import TOLERANCE, Check, SubjectError, answers, foreign, verdict_of
from assay.audit.invariants.findings import few
from assay.audit.invariants.logged import Metrics, apart, companies, described, mean_over_groups, read, together
from assay.audit.invariants.readings import finite_of, tensor_of
from assay.audit.precision import Precisions, tolerance_for
from assay.tree.fields import reverse_kl
from assay.tree.world import TreeProblem, World
from assay.tree.worlds import small_world

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
Gaps = list[tuple[float, str]]
"""How far each reading is from what it must be, and both in words."""


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
    ``at_start`` must read its value on every batch. One of :data:`AT_START` must read another value on some batch
    where these policies differ, or it compares nothing. Later a metric is an estimate: the mean of each in ``exact``
    over all groups that the policy can draw must be the value by enumeration.

    Args:
        metrics: called with the parameters it names out of :data:`assay.audit.call.NAMES`.
        at_start: value by name; those that ``metrics`` does not return are left out.
        exact: value of a problem by name, for an on-policy world with a reference that differs.
        world: problems to read metrics in; None takes :func:`assay.tree.worlds.small_world`.
        group_size: responses in a group.
    """
    place, wanted = world or small_world(), exact or {}
    rights = {name: finite_of(f"at_start[{name!r}]", right) for name, right in at_start.items()}
    with Precisions() as seen:
        began = _at_start(metrics, place, rights, group_size)
        means = _in_the_mean(metrics, place, wanted, group_size)
        still = _unmoved(metrics, place, rights, began.keys() & AT_START.keys(), group_size)
    known = began.keys() | means.keys()
    if not known or wanted.keys() - known:
        sought = sorted(wanted.keys() - known) or list(at_start)
        raise SubjectError(f"the metrics return no {' and no '.join(sought)}")
    detail = f"{', '.join(sorted(known))} against what is known of them"
    gaps = [pair for pairs in [*began.values(), *means.values()] for pair in pairs]
    remedy = "compare like with like: one path, one processing of the logits, one number a response"
    return _verdict(detail, gaps, f"{len(gaps)} readings", remedy, still, seen)


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
            off = _kl(problem, policy, now)
            gaps.append((_gap(off, 0.0), f"{problem.name}, {when}: the policy is {off:.6g} nats from its weights"))
            made, right = _kl(problem, policy, reference), _kl(problem, now, _sum(begun))
            line = f"{problem.name}, {when}: KL to the reference is {made:.6g}, to the first policy {right:.6g}"
            gaps.append((_gap(made, right), line))
    remedy = "freeze a copy of the policy that training begins from, before anything is loaded over it"
    return _verdict("KL to the reference at step 0 and after a restart", gaps, "problems x 2 moments", remedy)


def _at_start(metrics: Metrics, place: World, rights: Mapping[str, float], size: int) -> dict[str, Gaps]:
    """Return how far each metric is from what it must read at the start, on every batch."""
    gaps: dict[str, Gaps] = {}
    began = together(place)
    for batch in (make_batch(began, groups) for groups in companies(began, size)):
        reading = read(metrics, batch)
        for name in (name for name in rights if name in reading):
            line = f"{name} reads {reading[name]:.6g} at the start, not {rights[name]:g}: {described(batch)}"
            gaps.setdefault(name, []).append((_gap(reading[name], rights[name]), line))
    return gaps


def _in_the_mean(metrics: Metrics, place: World, wanted: Mapping[str, Exact], size: int) -> dict[str, Gaps]:
    """Return how far each metric's mean is from its exact value, on every problem."""
    gaps: dict[str, Gaps] = {}
    for number, problem in enumerate(place if wanted else ()):
        means = mean_over_groups(metrics, place, number, size)
        for name in (name for name in wanted if name in means):
            what = f"the exact value of {name!r}"
            right = finite_of(what, foreign(what, wanted[name], problem))
            line = f"{name} is {means[name]:.6g} in the mean and {right:.6g} by enumeration: problem {problem.name!r}"
            gaps.setdefault(name, []).append((_gap(means[name], right), line))
    return gaps


def _unmoved(metrics: Metrics, place: World, rights: Mapping[str, float], names: Iterable[str], size: int) -> list[str]:
    """Return which metrics read the same where the policies that they compare differ."""
    parted = apart(place)
    readings = [read(metrics, make_batch(parted, groups)) for groups in companies(parted, size)]
    return [
        f"{name} reads {rights[name]:g} on every batch where the policies differ, too: it compares nothing"
        for name in sorted(names)
        if all(name in reading and _gap(reading[name], rights[name]) <= TOLERANCE for reading in readings)
    ]


def _started(start: Start, begun: Weights, saved: Weights | None) -> tuple[Tensor, Tensor]:
    """Return both logits, made from copies: a trainer may change what it is given."""
    copies = [state and {name: value.clone() for name, value in state.items()} for state in (begun, saved)]
    made = foreign("the trainer", start, *copies)
    if not (isinstance(made, tuple) and len(made) == 2):
        raise SubjectError(f"the trainer returned {type(made).__name__}; it must return two tensors of logits")
    policy, reference = (tensor_of("the trainer", one, begun["base"].shape) for one in made)
    return policy, reference


def _sum(weights: Weights) -> Float[Tensor, "I V"]:
    return weights["base"] + weights["adapter"]


def _kl(problem: TreeProblem, logits: Float[Tensor, "I V"], logits_ref: Float[Tensor, "I V"]) -> float:
    return float(reverse_kl(dataclasses.replace(problem, logits_ref=logits_ref), logits))


def _gap(made: float, right: float) -> float:
    gap = abs(made - right) / max(1.0, abs(right))
    return gap if math.isfinite(gap) else math.inf


def _verdict(
    detail: str, gaps: Gaps, exactness: str, remedy: str, still: Sequence[str] = (), seen: Precisions | None = None
) -> Check:
    tolerance, why = tolerance_for(seen.coarsest if seen else torch.float64, TOLERANCE, WHY)
    return verdict_of(
        "I6",
        detail,
        [*few(line for gap, line in gaps if not gap <= tolerance), *still],
        error=max(gap for gap, _ in gaps),
        tolerance=tolerance,
        why=why,
        exactness=exactness,
        remedy=remedy,
    )
