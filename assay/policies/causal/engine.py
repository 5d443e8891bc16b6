"""Our own engine: it draws from the very weights that are trained, with the forward that scores them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.streams import Stream, uniforms
from assay.policies.causal.draw import draw, greedy
from assay.policies.causal.layouts import Decode, Prefill
from assay.policies.causal.model import CausalPolicy
from assay.policies.causal.pack import pack
from assay.policies.engines import Decoding, Drawn, Request

DROP = 8
"""Finished responses leave the batch once they are more than one in so many."""


class OwnEngine:
    """Draw responses from a policy: each prompt read once, finished responses dropped, waiting ones taken in.

    A response's random numbers are those of its own address, so which others are drawn beside it changes its tokens
    only where rounding moves a probability across a uniform.

    Args:
        policy: whose weights are drawn from, as they are at the time.
        rows: most responses that are drawn at once.
        prompt_tokens: most prompt tokens that are read at once, beyond the first prompt.
        ended: whether a response has ended for another reason than a stop token, such as a stop string.
    """

    def __init__(
        self,
        policy: CausalPolicy,
        *,
        rows: int,
        prompt_tokens: int,
        ended: Callable[[Sequence[int]], bool] | None = None,
    ) -> None:
        self._policy, self._rows, self._prompt_tokens, self._ended = policy, rows, prompt_tokens, ended
        self._version = -1

    @property
    def version(self) -> int:
        """Return the version of the weights, as last told."""
        return self._version

    def load(self, named_weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take note of the version: the policy's own tensors are the weights."""
        self._version = version

    @torch.no_grad()
    def generate(
        self, requests: Sequence[Request], decoding: Decoding, *, seed: int, stream: Stream, step: int
    ) -> list[list[Drawn]]:
        """Return the responses to each request, in the order of its sample numbers; see the protocol.

        Raises:
            InputError: a prompt is empty.
        """
        waiting = deque(self._pieces(requests))
        finished: dict[tuple[int, int], Drawn] = {}
        batch: _Batch | None = None
        while waiting or batch:
            while pieces := self._admitted(waiting, self._rows - (len(batch) if batch else 0)):
                started = self._start(pieces, decoding, seed, stream, step)
                batch = batch.join(started) if batch else started
            assert batch is not None
            self._draw(batch, decoding)
            finished.update(batch.collected())
            batch = batch.without_finished(at_once=bool(waiting))
            if batch:
                batch.states = self._policy.hidden(batch.last, batch.cache.positions, batch.cache)
                batch.cache.advance()
        return [[finished[number, sample] for sample in request.samples] for number, request in enumerate(requests)]

    def _pieces(self, requests: Sequence[Request]) -> list[_Piece]:
        """Cut requests into pieces that fit into a batch."""
        return [
            _Piece(number, request, request.samples[first : first + self._rows])
            for number, request in enumerate(requests)
            for first in range(0, len(request.samples), self._rows)
        ]

    def _admitted(self, waiting: deque[_Piece], room: int) -> list[_Piece]:
        """Take from the queue what fits into the room, up to the limit of prompt tokens."""
        taken: list[_Piece] = []
        tokens = 0
        while waiting and len(waiting[0].samples) <= room:
            tokens += len(waiting[0].request.prompt)
            if taken and tokens > self._prompt_tokens:
                break
            room -= len(waiting[0].samples)
            taken.append(waiting.popleft())
        return taken

    def _start(self, pieces: list[_Piece], decoding: Decoding, seed: int, stream: Stream, step: int) -> _Batch:
        """Read prompts, and stand at the first token of every response."""
        row = pack([piece.request.prompt for piece in pieces], [()] * len(pieces)).to(self._policy.device)
        layout = Prefill(row)
        states = self._policy.hidden(row.tokens, row.positions, layout)
        ends = torch.tensor([group.start + group.prompt - 1 for group in row.groups], device=states.device)
        counts = [len(piece.samples) for piece in pieces]
        problems = [piece.request.problem for piece in pieces for _ in piece.samples]
        samples = [sample for piece in pieces for sample in piece.samples]
        uniform = uniforms(seed, stream, decoding.max_tokens, step=step, problem=problems, sample=samples)
        return _Batch(
            [_Row(piece.number, sample) for piece in pieces for sample in piece.samples],
            uniform.to(states.device),
            states[ends].repeat_interleave(torch.tensor(counts, device=states.device), 0),
            Decode(layout.prompts(), counts),
        )

    def _draw(self, batch: _Batch, decoding: Decoding) -> None:
        """Draw the next token of each response."""
        if decoding.greedy:
            tokens = greedy(self._policy.head().logits(batch.states))
            logp = torch.zeros(len(batch))
        else:
            at = batch.cache.said[:, None]
            tokens, logp = draw(
                self._policy.head(decoding.temperature).logits(batch.states),
                batch.uniform.gather(1, at)[:, 0],
                top_k=decoding.top_k,
                top_p=decoding.top_p,
            )
        batch.last = tokens
        for row, token, value in zip(batch.rows, tokens.tolist(), logp.tolist(), strict=True):
            if not row.done:
                row.add(token, value, decoding, self._ended)


@dataclass(frozen=True)
class _Piece:
    """Responses to one request that are drawn together."""

    number: int
    request: Request
    samples: tuple[int, ...]


@dataclass
class _Row:
    """A response as far as it has got."""

    number: int
    sample: int
    tokens: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    ended: bool = False
    done: bool = False

    def add(self, token: int, logp: float, decoding: Decoding, ended: Callable[[Sequence[int]], bool] | None) -> None:
        self.tokens.append(token)
        self.logp.append(logp)
        self.ended = token in decoding.stop_tokens or (ended is not None and ended(self.tokens))
        self.done = self.ended or len(self.tokens) == decoding.max_tokens


@dataclass
class _Batch:
    """Responses that are drawn side by side.

    Attributes:
        rows: one a response; a finished one stays until enough of them have finished.
        uniform: a number for each token that it may get.
        states: the last hidden state of each, from which its next token is drawn.
        cache: what each has read.
        last: the token of each that was drawn last.
    """

    rows: list[_Row]
    uniform: Float[Tensor, "N T"]
    states: Float[Tensor, "N D"]
    cache: Decode
    last: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))

    def __len__(self) -> int:
        return len(self.rows)

    def join(self, other: _Batch) -> _Batch:
        """Return both batches as one."""
        self.cache.join(other.cache)
        uniform, states = torch.cat([self.uniform, other.uniform]), torch.cat([self.states, other.states])
        return _Batch(self.rows + other.rows, uniform, states, self.cache)

    def collected(self) -> dict[tuple[int, int], Drawn]:
        """Return the finished responses by request and sample."""
        return {
            (row.number, row.sample): Drawn(tuple(row.tokens), tuple(row.logp), not row.ended)
            for row in self.rows
            if row.done
        }

    def without_finished(self, *, at_once: bool) -> _Batch | None:
        """Return the batch without its finished responses, or as it is while they are few; None when none is left."""
        alive = [index for index, row in enumerate(self.rows) if not row.done]
        if not alive:
            return None
        if len(alive) == len(self) or (not at_once and (len(self) - len(alive)) * DROP <= len(self)):
            return self
        index = torch.tensor(alive, device=self.states.device)
        self.cache.keep(index)
        return _Batch(
            [self.rows[i] for i in alive], self.uniform[index], self.states[index], self.cache, self.last[index]
        )
