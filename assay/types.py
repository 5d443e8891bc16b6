"""The nouns every layer shares: what a policy, an outcome and a batch are. No behaviour lives here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor, nn

Status = Literal["right", "wrong", "unparseable", "timeout", "error"]


@dataclass(frozen=True)
class Outcome:
    """What a verifier says of one response.

    Attributes:
        score: the reward, or None where the response could not be scored. None is not zero.
        status: why.
    """

    score: float | None
    status: Status


@runtime_checkable
class Policy(Protocol):
    """A causal next-token model. ``policy(tokens)`` is all that sampling, scoring and trees need."""

    def __call__(self, tokens: Int[Tensor, "B S"], /) -> Float[Tensor, "B S V"]:
        """Return the logits over the response vocabulary that follow each position.

        ``logits[b, s]`` predicts the token *after* ``tokens[b, s]``.
        """
        ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield every parameter with its name."""
        ...


@dataclass(frozen=True)
class Rollout:
    """Responses drawn from the current policy, grouped by explicit ids.

    Attributes:
        prompt: prompt tokens, ``[B, S]``.
        response: the sampled tokens, ``[B, T]``.
        group: which problem of the batch each row answers, ``[B]``.
        logp: the sampler's own log-probability of each sampled token, ``[B, T]``, in nats.
    """

    prompt: Int[Tensor, "B S"]
    response: Int[Tensor, "B T"]
    group: Int[Tensor, " B"]
    logp: Float[Tensor, "B T"]
