"""I7: the sampler draws with the weights that are trained.

A sampler that never receives an adapter leaves a finite loss, plausible rewards and exit code 0. It is found by moving
the trained weights, one tensor at a time, and asking both sides for the log-probabilities of every response.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.audit.check import TOLERANCE, Check, SubjectError, answers, foreign, relative_gap, verdict_of
from assay.audit.invariants.findings import few
from assay.audit.invariants.readings import tensor_of
from assay.audit.precision import Precisions, tolerance_for
from assay.core.streams import Stream, normals
from assay.tree.prefix import Grammar, prefix_tree

Score = Callable[[Int[Tensor, "M T"]], Any]
"""Returns the log-probability of each token of each response, ``[M, T]``."""
STEP = 0.3
"""Standard deviation of a perturbation: large enough to move every log-probability of a tiny policy."""


@dataclass(frozen=True)
class Pair:
    """A trainer and the sampler that it feeds.

    Attributes:
        weights: every trained tensor by name, adapters included. They are live: the check moves them and puts them
            back.
        sync: the library's own hand-over of weights to the sampler.
        trained_logp: log-probabilities under the trained weights.
        sampler_logp: log-probabilities that the sampler would draw with now.
        version: how many deliveries the sampler's side says there were; None where nothing is counted.
    """

    weights: Mapping[str, Tensor]
    sync: Callable[[], object]
    trained_logp: Score
    sampler_logp: Score
    version: Callable[[], int] | None = None


@answers("I7")
def freshness(pair: Pair, *, vocabulary: int = 3, length: int = 2, tolerance: float = TOLERANCE) -> Check:
    """Move the trained weights, hand them over, and compare the log-probabilities of every response on both sides.

    First every tensor is moved, then each on its own from there, so that a low-rank adapter whose second factor is
    zero at the start shows too. A count of deliveries must advance when one arrives, and only then, and a hand-over
    must leave the trained weights as they are. Weights are restored and handed over again at the end.

    Args:
        pair: both sides.
        vocabulary: size of the response vocabulary.
        length: length of the responses that are enumerated.
        tolerance: relative to how far the trained log-probabilities move; wider where a side computes less precisely.
    """
    _usable(pair)
    responses = prefix_tree(Grammar(vocabulary, length)).responses
    start = {name: weight.detach().clone() for name, weight in pair.weights.items()}
    try:
        delivery = _deliver_all(pair, responses, tolerance)
        lost, still = _deliver_each(pair, responses, delivery)
    finally:
        _restore(pair, start)
        foreign("the sync", pair.sync)
        _restore(pair, start)
    untold = f"; {len(still)} of them move no log-probability and are not told apart" if still else ""
    return verdict_of(
        "I7",
        "after a perturbation and a sync the sampler's log-probabilities are those of the trained weights",
        [*few(lost), *few(delivery.found)],
        error=delivery.gap,
        tolerance=delivery.tolerance,
        why=delivery.why,
        exactness=f"{len(responses)} responses, {len(start)} trained tensors together and one by one{untold}",
        remedy="hand over every trained tensor, and count a delivery only when it is acknowledged",
    )


def _usable(pair: object) -> None:
    """Raise a :class:`SubjectError` unless there are two sides and live weights between them."""
    if not isinstance(pair, Pair):
        raise SubjectError(f"the pair is {type(pair).__name__}; need a Pair of a trainer and its sampler")
    if not isinstance(pair.weights, Mapping) or not pair.weights:
        raise SubjectError("the pair names no trained tensor, so there is nothing to deliver")
    for name, weight in pair.weights.items():
        if not isinstance(weight, Tensor) or not weight.is_floating_point() or weight.is_meta:
            raise SubjectError(f"the weight {name!r} is {type(weight).__name__}; need a tensor of real numbers")


@dataclass(frozen=True)
class _Delivery:
    """What came of moving all tensors and handing them over.

    Attributes:
        moved: how far the trained log-probabilities went.
        gap: how far the sampler's then are from them, relative to that.
        tolerance: largest gap that is a delivery.
        why: why it is that.
        found: what is wrong.
    """

    moved: float
    gap: float
    tolerance: float
    why: str
    found: tuple[str, ...]


def _deliver_all(pair: Pair, responses: Int[Tensor, "M T"], tolerance: float) -> _Delivery:
    with Precisions() as seen:
        before, count = _scored(pair.trained_logp, "the trainer", responses), _version(pair)
        for number, weight in enumerate(pair.weights.values()):
            _move(weight, number)
        sent = {name: weight.detach().clone() for name, weight in pair.weights.items()}
        foreign("the sync", pair.sync)
        trained = _scored(pair.trained_logp, "the trainer", responses)
        drawn = _scored(pair.sampler_logp, "the sampler", responses)
    moved = _farthest(_apart(trained, before))
    if moved <= TOLERANCE:
        raise SubjectError("moving every trained tensor moves no log-prob of the trainer: are they the live ones?")
    why = "relative to how far the trained log-probabilities move; a tensor that is not delivered gives about 1"
    tolerance, why = tolerance_for(seen.coarsest, tolerance, why)
    apart = _apart(drawn, trained)
    gap, now, found = float(apart.max()) / moved, _version(pair), []
    if not gap <= tolerance:
        row, place = divmod(int(apart.argmax()), apart.shape[1])
        found.append(
            f"all tensors moved and synced: token {place} of response {responses[row].tolist()} has log-prob "
            f"{float(trained[row, place]):.6g} under the trained weights, {float(drawn[row, place]):.6g} in the sampler"
        )
    if count is not None and (now != count) != (gap <= tolerance):
        said = "delivered, and the version stays" if now == count else "not delivered, and the version advances to"
        found.append(f"from version {count}: the weights are {said} {now}")
    return _Delivery(moved, gap, tolerance, why, (*found, *_touched(pair, sent)))


def _touched(pair: Pair, sent: Mapping[str, Tensor]) -> list[str]:
    """Return the trained tensors that a sync changed."""
    gaps = {name: relative_gap(weight.detach(), sent[name]) for name, weight in pair.weights.items()}
    return [
        f"the sync changes the trained tensor {name}, by {gap:.3g} of its largest entry"
        for name, gap in gaps.items()
        if not gap <= TOLERANCE
    ]


def _deliver_each(pair: Pair, responses: Int[Tensor, "M T"], delivery: _Delivery) -> tuple[list[str], list[str]]:
    """Move one tensor at a time; return those that never reach the sampler, and those that move nothing beyond
    rounding, such as a shift of all logits."""
    lost, still = [], []
    for number, (name, weight) in enumerate(pair.weights.items()):
        kept = weight.detach().clone()
        trained = _scored(pair.trained_logp, "the trainer", responses)
        drawn = _scored(pair.sampler_logp, "the sampler", responses)
        _move(weight, number + len(pair.weights))
        foreign("the sync", pair.sync)
        moved = _apart(_scored(pair.trained_logp, "the trainer", responses), trained)
        followed = _apart(_scored(pair.sampler_logp, "the sampler", responses), drawn)
        if _farthest(moved) <= delivery.tolerance * delivery.moved:
            still.append(name)
        elif float(followed.max()) <= delivery.tolerance * _farthest(moved):
            row = int(moved.argmax()) // moved.shape[1]
            lost.append(
                f"{name} never reaches the sampler: moving it changes the trained log-probs of response "
                f"{responses[row].tolist()} by up to {_farthest(moved[row]):.3g}, the sampler's by "
                f"{float(followed.max()):.3g}"
            )
        weight.data.copy_(kept)
        foreign("the sync", pair.sync)
    return lost, still


def _restore(pair: Pair, start: Mapping[str, Tensor]) -> None:
    for name, weight in pair.weights.items():
        weight.data.copy_(start[name])


def _move(weight: Tensor, address: int) -> None:
    """Add normals to a live tensor, in place and without a gradient."""
    moved = STEP * normals(0, Stream.INIT, weight.numel(), problem=address)
    weight.data.add_(moved.view(weight.shape).to(weight))


def _scored(score: Score, who: str, responses: Int[Tensor, "M T"]) -> Float[Tensor, "M T"]:
    made = tensor_of(f"{who}'s score", foreign(f"{who}'s score", score, responses.clone()), responses.shape)
    if bool(made.isnan().any()):
        raise SubjectError(f"{who}'s score returned NaN")
    return made


def _apart(a: Float[Tensor, "M T"], b: Float[Tensor, "M T"]) -> Float[Tensor, "M T"]:
    """Return how far log-probabilities are apart; two that are both -inf are not."""
    return torch.where(a == b, 0.0, (a - b).abs())


def _farthest(apart: Float[Tensor, "*shape"]) -> float:
    """Return the largest of some distances; a token that is cut on one side is infinitely far and does not count."""
    return float(torch.where(apart.isfinite(), apart, 0.0).max())


def _version(pair: Pair) -> int | None:
    if pair.version is None:
        return None
    made = foreign("the version", pair.version)
    try:
        return operator.index(made)
    except Exception as error:
        raise SubjectError(f"the version is {type(made).__name__}; it must be a whole number") from error
