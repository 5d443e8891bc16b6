"""I7: the sampler draws with the weights that are trained.

A sampler that never receives an adapter leaves a finite loss, plausible rewards and exit code 0. It is found by moving
the trained weights, one tensor at a time, and asking both sides for the log-probabilities of every response.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.audit.check import TOLERANCE, Check, SubjectError, answers, foreign, verdict_of
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
    zero at the start shows too. A count of deliveries must advance when one arrives, and only then. Weights are
    restored and handed over again at the end.

    Args:
        pair: both sides.
        vocabulary: size of the response vocabulary.
        length: length of the responses that are enumerated.
        tolerance: relative to how far the trained log-probabilities move.
    """
    if not pair.weights:
        raise SubjectError("the pair names no trained tensor, so there is nothing to deliver")
    responses = prefix_tree(Grammar(vocabulary, length)).responses
    start = {name: weight.detach().clone() for name, weight in pair.weights.items()}
    try:
        moved, gap, whole = _deliver_all(pair, responses, tolerance)
        lost, still = _deliver_each(pair, responses, tolerance, moved)
    finally:
        for name, weight in pair.weights.items():
            weight.data.copy_(start[name])
        foreign("the sync", pair.sync)
    untold = f"; {len(still)} of them move no log-probability and are not told apart" if still else ""
    return verdict_of(
        "I7",
        "after a perturbation and a sync the sampler's log-probabilities are those of the trained weights",
        lost + whole,
        error=gap,
        tolerance=tolerance,
        why="relative to how far the trained log-probabilities move; a tensor that is not delivered gives about 1",
        exactness=f"{len(responses)} responses, {len(start)} trained tensors together and one by one{untold}",
        remedy="hand over every trained tensor, and count a delivery only when it is acknowledged",
    )


def _deliver_all(pair: Pair, responses: Int[Tensor, "M T"], tolerance: float) -> tuple[float, float, list[str]]:
    """Move all tensors at once; return how far log-probs move, the relative gap after a sync, and what is wrong."""
    before, count = _scored(pair.trained_logp, "the trainer", responses), _version(pair)
    for number, weight in enumerate(pair.weights.values()):
        _move(weight, number)
    foreign("the sync", pair.sync)
    trained = _scored(pair.trained_logp, "the trainer", responses)
    drawn = _scored(pair.sampler_logp, "the sampler", responses)
    moved = _farthest(_apart(trained, before))
    if moved <= TOLERANCE:
        raise SubjectError("moving every trained tensor moves no log-prob of the trainer: are they the live ones?")
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
    return moved, gap, found


def _deliver_each(
    pair: Pair, responses: Int[Tensor, "M T"], tolerance: float, scale: float
) -> tuple[list[str], list[str]]:
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
        if _farthest(moved) <= tolerance * scale:
            still.append(name)
        elif float(followed.max()) <= tolerance * _farthest(moved):
            row = int(moved.argmax()) // moved.shape[1]
            lost.append(
                f"{name} never reaches the sampler: moving it changes the trained log-probs of response "
                f"{responses[row].tolist()} by up to {_farthest(moved[row]):.3g}, the sampler's by "
                f"{float(followed.max()):.3g}"
            )
        weight.data.copy_(kept)
        foreign("the sync", pair.sync)
    return lost, still


def _move(weight: Tensor, address: int) -> None:
    """Add normals to a live tensor, in place and without a gradient."""
    moved = STEP * normals(0, Stream.INIT, weight.numel(), problem=address)
    weight.data.add_(moved.view(weight.shape).to(weight))


def _scored(score: Score, who: str, responses: Int[Tensor, "M T"]) -> Float[Tensor, "M T"]:
    made = foreign(f"{who}'s score", score, responses)
    if not isinstance(made, Tensor) or made.shape != responses.shape:
        shape = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
        raise SubjectError(f"{who}'s score returned {shape}; need the log-probs of tokens {tuple(responses.shape)}")
    if bool(made.isnan().any()):
        raise SubjectError(f"{who}'s score returned NaN")
    return made.detach().double().clone()


def _apart(a: Float[Tensor, "M T"], b: Float[Tensor, "M T"]) -> Float[Tensor, "M T"]:
    """Return how far log-probabilities are apart; two that are both -inf are not."""
    return torch.where(a == b, 0.0, (a - b).abs())


def _farthest(apart: Float[Tensor, "*shape"]) -> float:
    """Return the largest of some distances; a token that is cut on one side is infinitely far and does not count."""
    return float(torch.where(apart.isfinite(), apart, 0.0).max())


def _version(pair: Pair) -> int | None:
    return None if pair.version is None else int(foreign("the version", pair.version))
