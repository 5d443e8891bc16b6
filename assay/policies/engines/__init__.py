"""What draws responses: one protocol, whether the tokens come from this package or from a serving engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from assay.core.streams import Stream


@dataclass(frozen=True)
class Decoding:
    """How tokens are chosen, the same for every request of a call.

    Attributes:
        temperature: the logits are divided by it; above zero.
        top_k: tokens kept at each position, the likeliest first; 0 keeps all.
        top_p: probability kept at each position, the likeliest tokens first, in (0, 1]; 1 keeps all.
        max_tokens: longest response, the token that ends it included.
        stop_tokens: any of these ends a response, and is its last token.
        greedy: take the likeliest token and draw nothing; ``temperature``, ``top_k`` and ``top_p`` are not read.
    """

    temperature: float
    top_k: int
    top_p: float
    max_tokens: int
    stop_tokens: frozenset[int]
    greedy: bool = False


@dataclass(frozen=True)
class Request:
    """One prompt and the responses wanted to it.

    Attributes:
        prompt: its tokens, complete: no engine adds a beginning-of-sequence token.
        problem: number of the problem. With the sample, the call's seed, stream and step, and the position in the
            response, it is the address of a random number.
        samples: number of each response wanted.
    """

    prompt: tuple[int, ...]
    problem: int
    samples: tuple[int, ...]


@dataclass(frozen=True)
class Drawn:
    """One response as it was drawn.

    Attributes:
        tokens: the one that ended it included.
        logp: the log-probability each token was drawn with, in nats, after temperature and truncation of the
            distribution; zeros where the decoding is greedy.
        truncated: it reached ``max_tokens`` without a token that ends it.
    """

    tokens: tuple[int, ...]
    logp: tuple[float, ...]
    truncated: bool


@runtime_checkable
class Engine(Protocol):
    """What draws responses from the weights it was last given."""

    @property
    def version(self) -> int:
        """Which weights it holds; the trainer compares it with its own before it draws. -1 before any load."""
        ...

    def generate(
        self, requests: Sequence[Request], decoding: Decoding, *, seed: int, stream: Stream, step: int
    ) -> list[list[Drawn]]:
        """Return the responses to each request, in the order of its sample numbers."""
        ...

    def load(self, named_weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take over weights under the model's own parameter names, and forget whatever was computed from others."""
        ...
