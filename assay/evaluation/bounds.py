"""Certified bounds of the probability of a right response, by best-first expansion of the response tree.

Nothing is sampled. The likeliest prefixes are read first; every finished response is graded and its probability added
to what was seen right, wrong or unscorable. What was not seen could be anything, and makes the bounds' width.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.errors import InputError
from assay.types import Outcome

Prefix = tuple[int, ...]
NextLogp = Callable[[list[Prefix]], Float[Tensor, "N V"]]

FRONTIER = 100_000
"""Prefixes kept waiting; of more, the likeliest stay and the others remain unseen."""

_ROUNDING = 2.0**-53
_SMALLEST = 2.0**-900  # a prefix below this stays unseen, so that no product ever underflows
_TOTAL_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Bounds:
    """What is certain about one problem. Masses are probabilities, rounded down; what is unseen is rounded up.

    Attributes:
        right: at least this much is answered right.
        wrong: at least this much is scored and not right.
        unscorable: at least this much could not be scored.
        unseen: at most this much is none of the three.
        passes: prefixes that were read, one forward pass each.
        graded: finished responses that were graded.
        complete: whether the whole tree was seen, so that ``unseen`` is rounding alone.
    """

    right: float
    wrong: float
    unscorable: float
    unseen: float
    passes: int
    graded: int
    complete: bool

    @property
    def low(self) -> float:
        """Return a lower bound of the success probability."""
        return self.right

    @property
    def high(self) -> float:
        """Return an upper bound of the success probability, where an unscorable response is not right."""
        return _one_minus(self.wrong, self.unscorable)

    @property
    def high_if_unscorable_right(self) -> float:
        """Return an upper bound of what success would be, were every unscorable response right."""
        return _one_minus(self.wrong)


def certified_bounds(
    next_logp: NextLogp,
    ends: Callable[[Prefix], bool],
    grade: Callable[[list[Prefix]], Sequence[Outcome]],
    *,
    passes: int,
    batch: int = 64,
    children: int = 64,
) -> Bounds:
    """Bound the probability that a sampled response to one problem is right.

    The bounds hold of this policy under this sampler and problem, with certainty and not at some level: no sampling
    error, no assumption about problems. They widen with what was not read: a spread-out policy, whose likeliest
    responses are all unlikely, needs more passes than there may be, and then they say little, truly. More passes never
    widen them. With ``children`` at the size of the vocabulary and passes enough, success is exact to rounding.

    Rounding: the distribution meant is the given log-probabilities' exponential, divided by its sum, as inverting a
    cumulative distribution draws it. In float64 a factor of it is off by less than V + 16 roundings of 2**-53 (a sum
    of V terms in any order, exponentials within 4, a quotient, a product). Twice that, a token, is taken off every mass
    seen, which also covers the higher orders.
    What a forward pass itself rounds (other batch shapes, other kernels) is not covered: these are bounds for the
    log-probabilities given.

    Args:
        next_logp: the log-probabilities that the sampler draws the next token with, after each prefix of a response;
            -inf where its settings cut a token off.
        ends: whether a prefix is a finished response: by its last token, a string in it, or its length. It is not
            asked about the empty one.
        grade: outcomes of finished responses, one each, in order.
        passes: prefixes to read at most, at least 1.
        batch: prefixes read at once; another size reads another tree, but all of it holds.
        children: likeliest next tokens kept after each prefix; the mass of the others stays unseen.

    Raises:
        InputError: an argument is below 1, the log-probabilities are none, or outcomes are missing.
    """
    if min(passes, batch, children) < 1:
        raise InputError(f"passes = {passes}, batch = {batch}, children = {children}: each must be at least 1")
    tree = _Tree()
    while tree.waiting and tree.passes < passes:
        prefixes, masses = tree.likeliest(min(batch, passes - tree.passes))
        finished = tree.expand(prefixes, masses, next_logp(prefixes), ends, children)
        if finished:
            tree.add(finished, grade(list(finished)))
    return tree.bounds()


def bounds_record(numbers: Sequence[int], bounds: Sequence[Bounds]) -> dict[str, Any]:
    """Return the bounds of several problems as plain values for JSON, and those of their mean success.

    The mean is of these problems, and certain; it says nothing of a population they may be from.

    Raises:
        InputError: there are no problems, or not one entry for each.
    """
    if not numbers or len(numbers) != len(bounds):
        raise InputError(f"{len(bounds)} bounds of {len(numbers)} problems: need one for each of at least 1 problem")
    count = len(numbers)
    rows = [
        {
            "problem": number,
            "low": each.low,
            "high": each.high,
            "high_if_unscorable_right": each.high_if_unscorable_right,
            **{name: getattr(each, name) for name in Bounds.__dataclass_fields__},
        }
        for number, each in zip(numbers, bounds, strict=True)
    ]
    return {
        "low": max(0.0, _down(_down(math.fsum(each.low for each in bounds)) / count)),
        "high": min(1.0, _up(_up(math.fsum(each.high for each in bounds)) / count)),
        "complete": all(each.complete for each in bounds),
        "per_problem": rows,
    }


@dataclass
class _Tree:
    """What has been read of the response tree so far.

    Attributes:
        waiting: a heap of prefixes not yet read, each behind its negative mass.
        masses: certified masses of the graded responses, by what they were.
        passes: prefixes read.
        dropped: whether anything was left out that is not waiting.
        factor: largest relative error of one factor of a mass, a first-order bound.
    """

    waiting: list[tuple[float, Prefix]] = field(default_factory=lambda: [(-1.0, ())])
    masses: dict[str, list[float]] = field(default_factory=lambda: {"right": [], "wrong": [], "unscorable": []})
    passes: int = 0
    dropped: bool = False
    factor: float = 0.0

    def likeliest(self, count: int) -> tuple[list[Prefix], list[float]]:
        """Take the prefixes of the largest mass off the heap."""
        taken = [heapq.heappop(self.waiting) for _ in range(min(count, len(self.waiting)))]
        self.passes += len(taken)
        return [prefix for _, prefix in taken], [-mass for mass, _ in taken]

    def expand(
        self,
        prefixes: list[Prefix],
        masses: list[float],
        logp: Float[Tensor, "N V"],
        ends: Callable[[Prefix], bool],
        children: int,
    ) -> dict[Prefix, float]:
        """Put the likeliest children of some prefixes on the heap, and return those that are finished."""
        chance = _probabilities(logp, len(prefixes))
        self.factor = (chance.shape[1] + 16) * _ROUNDING
        mass = chance * torch.tensor(masses, dtype=torch.float64)[:, None]
        kept, tokens = mass.topk(min(children, mass.shape[1]), dim=1)
        self.dropped |= int((logp > -math.inf).sum()) > int((kept >= _SMALLEST).sum())
        finished = {}
        for prefix, row, column in zip(prefixes, kept.tolist(), tokens.tolist(), strict=True):
            for value, token in zip(row, column, strict=True):
                if value < _SMALLEST:
                    break
                child = (*prefix, token)
                if ends(child):
                    finished[child] = value
                else:
                    heapq.heappush(self.waiting, (-value, child))
        if len(self.waiting) > 2 * FRONTIER:
            self.waiting, self.dropped = heapq.nsmallest(FRONTIER, self.waiting), True
        return finished

    def add(self, finished: dict[Prefix, float], outcomes: Sequence[Outcome]) -> None:
        """Count finished responses by their outcomes, each with what rounding may have added taken off."""
        if len(outcomes) != len(finished):
            raise InputError(
                f"{len(outcomes)} outcomes of {len(finished)} responses: the grader must give one for each"
            )
        for (response, mass), outcome in zip(finished.items(), outcomes, strict=True):
            slack = 2 * len(response) * self.factor
            kind = "unscorable" if outcome.score is None else "right" if outcome.status == "right" else "wrong"
            self.masses[kind].append(_down(mass * _down(1 - slack)))

    def bounds(self) -> Bounds:
        """Return what is certain by now."""
        seen = {kind: max(0.0, _down(math.fsum(masses))) for kind, masses in self.masses.items()}
        graded = sum(map(len, self.masses.values()))
        unseen = _one_minus(*seen.values())
        complete = not (self.waiting or self.dropped)
        return Bounds(**seen, unseen=unseen, passes=self.passes, graded=graded, complete=complete)


def _probabilities(logp: Float[Tensor, "N V"], rows: int) -> Float[Tensor, "N V"]:
    """Return the distributions in float64, each divided by its sum."""
    if len(logp) != rows:
        raise InputError(f"{len(logp)} rows of next-token log-probabilities for {rows} prefixes: need one a prefix")
    weights = logp.detach().double().cpu().exp()
    total = weights.sum(-1, keepdim=True)
    if not bool(((total - 1).abs() <= _TOTAL_TOLERANCE).all()):
        worst = float(total[(total - 1).abs().nan_to_num(math.inf).argmax()])
        raise InputError(
            f"next-token log-probabilities of total probability {worst}: each row must be a distribution's"
        )
    return weights / total


def _one_minus(*masses: float) -> float:
    return min(1.0, max(0.0, _up(math.fsum((1.0, *(-mass for mass in masses))))))


def _down(value: float) -> float:
    return math.nextafter(value, -math.inf)


def _up(value: float) -> float:
    return math.nextafter(value, math.inf)
