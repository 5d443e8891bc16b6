"""Responses wait in a buffer while the policy moves on, and lose what they were drawn with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor

from assay.audit.invariants.buffering import Signed, Trained, buffered
from specimens.bench import Specimen

PROMPTS, BATCH = 6, 2


def repeat_each_prompt(order: list[int], repeats: int) -> list[int]:
    return [prompt for prompt in order for _ in range(repeats)]


def repeat_each_batch(order: list[int], repeats: int) -> list[int]:
    chunks = [order[first : first + BATCH] for first in range(0, len(order), BATCH)]
    return [prompt for chunk in chunks for _ in range(repeats) for prompt in chunk]


def reuse(repeat: Callable[[list[int], int], list[int]], iterations: int = 2) -> Callable[[Signed], Iterator[Trained]]:
    """Return a loop that draws for every ``iterations``-th batch of an index sampler and reuses it in between."""

    def loop(policy: Signed) -> Iterator[Trained]:
        indices = torch.tensor(repeat(list(range(PROMPTS)), iterations)).view(-1, BATCH)
        for step, prompt in enumerate(indices):
            if step % iterations == 0:
                response, logp = policy.draw(prompt)
            yield Trained(prompt, response, logp)
            policy.update()

    return loop


def current_weights(policy: Signed, prompt: Int[Tensor, " B"], response: Int[Tensor, "B T"], logp: Tensor) -> Tensor:
    return policy.score(prompt, response)


def weights_that_drew(policy: Signed, prompt: Int[Tensor, " B"], response: Int[Tensor, "B T"], logp: Tensor) -> Tensor:
    return logp


def asynchronous(denominator: Callable[..., Tensor], lag: int = 2) -> Callable[[Signed], Iterator[Trained]]:
    """Return a loop whose rollouts run ahead of training by ``lag`` batches."""

    def loop(policy: Signed) -> Iterator[Trained]:
        waiting = []
        for prompt in torch.arange(PROMPTS).view(-1, BATCH):
            waiting.append((prompt, *policy.draw(prompt)))
            if len(waiting) > lag:
                yield _train(policy, denominator, *waiting.pop(0))
                policy.update()
        for rows in waiting:
            yield _train(policy, denominator, *rows)
            policy.update()

    return loop


def _train(policy: Signed, denominator: Callable[..., Tensor], *rows: Tensor) -> Trained:
    prompt, response, _ = rows
    return Trained(prompt, response, denominator(policy, *rows))


SPECIMENS = (
    Specimen("OFF-08", partial(buffered, uses=2), reuse(repeat_each_prompt), reuse(repeat_each_batch)),
    Specimen("X-14", partial(buffered, uses=1), asynchronous(current_weights), asynchronous(weights_that_drew)),
)
