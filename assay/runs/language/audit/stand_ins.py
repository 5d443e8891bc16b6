"""What stands in for a part of a run where the audit has to know or to prescribe what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from assay.core.streams import Stream
from assay.policies.causal.model import CausalPolicy
from assay.policies.engines import Decoding, Drawn, Engine, Request
from assay.types import Outcome, Response, TextProblem

Gradient = dict[str, Tensor]
Score = Callable[[TextProblem, Response], float | None]

NUMBERS = (3, 5)
"""Numbers of the two problems, which are no places in a list."""


def reward(problem: TextProblem, response: Response) -> float | None:
    """Score a response: 0 or 1 on the first problem, graded on the second."""
    first, second = (*response.tokens, 0)[:2]
    if problem.number == NUMBERS[0]:
        return float((first + second + len(response.tokens)) % 2)
    return ((7 * first + 3 * second + 2) % 11) / 10


@dataclass(frozen=True)
class Table:
    """A grader that looks scores up.

    Attributes:
        score: of a response to a problem; None where it has none.
    """

    score: Score = reward

    def __call__(self, problems: Sequence[TextProblem], responses: Sequence[Response], /) -> list[Outcome]:
        """Return the outcomes."""
        made = [self.score(problem, response) for problem, response in zip(problems, responses, strict=True)]
        return [Outcome(score, "error" if score is None else "right" if score == 1 else "wrong") for score in made]


@dataclass
class Script:
    """An engine that says what it was told to say.

    Attributes:
        groups: the next responses to every problem.
        version: of the weights that it was last given.
    """

    groups: list[list[Drawn]] = field(default_factory=list)
    version: int = -1

    def load(self, named_weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take note of the version."""
        self.version = version

    def generate(
        self, requests: Sequence[Request], decoding: Decoding, *, seed: int, stream: Stream, step: int
    ) -> list[list[Drawn]]:
        """Return what was told."""
        return self.groups


class Stuck:
    """The package's engine, with a version or weights that do not follow.

    Args:
        engine: what draws.
        follows: whether it takes note of versions.
    """

    def __init__(self, engine: Engine, *, follows: bool) -> None:
        self._engine, self._follows = engine, follows

    @property
    def version(self) -> int:
        """Return what it last took note of."""
        return self._engine.version

    def load(self, named_weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take note of the first version, or of all."""
        if self._follows or self._engine.version < 0:
            self._engine.load(named_weights, version)

    def generate(
        self, requests: Sequence[Request], decoding: Decoding, *, seed: int, stream: Stream, step: int
    ) -> list[list[Drawn]]:
        """Draw."""
        return self._engine.generate(requests, decoding, seed=seed, stream=stream, step=step)


class Recorder(torch.optim.Optimizer):
    """An optimizer that keeps each gradient, and moves weights only as it is told.

    Args:
        policy: whose weights.
        moves: what is added to them at each step, by name; none by default.
    """

    def __init__(self, policy: CausalPolicy, moves: Gradient | None = None) -> None:
        self._named, self._moves = dict(policy.trained()), moves or {}
        self.taken: list[Gradient] = []
        super().__init__(self._named.values(), {"lr": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Keep the gradients."""
        self.taken.append({name: value.grad.clone() for name, value in self._named.items() if value.grad is not None})
        for name, move in self._moves.items():
            self._named[name].add_(move)
