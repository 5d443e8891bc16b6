"""The nouns every layer shares: what a policy, an outcome and a batch are. No behaviour lives here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

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


Memory = tuple[tuple[Tensor, ...], ...]
"""What later tokens attend to: for each layer, entries ``[*nodes, P, F]`` of P positions with F features each.

Every entry has the same number of node axes; one that is the same for all nodes along an axis has size 1 there.
"""


@runtime_checkable
class IncrementalPolicy(Policy, Protocol):
    """A policy that reads a prompt once and then one token at a time, for many continuations at once."""

    def read(self, prompt: Int[Tensor, " S"], /) -> tuple[Float[Tensor, "1 V"], Memory]:
        """Return the logits that follow a prompt, and its memory with one node axis of size 1."""
        ...

    def extend(self, memory: Memory, tokens: Int[Tensor, "*children"], /) -> tuple[Float[Tensor, "*nodes V"], Memory]:
        """Read one more token at each child of each node.

        Args:
            memory: with one node axis fewer than ``tokens``.
            tokens: the last axis runs over children; an axis along which they do not differ has size 1.

        Returns:
            The logits that follow each child, and the memory with the children's axis and one more entry a layer.
        """
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


Message = Mapping[str, str]
"""One turn of a chat: ``role`` and ``content``."""


@dataclass(frozen=True)
class TextProblem:
    """What a language model is asked.

    Attributes:
        number: its row in the data, and with it the address of its random numbers.
        prompt: plain text, or the turns of a chat.
        answer: the right answer as the data writes it; None where it has none.
        columns: everything else that its row holds, handed to the reward function.
    """

    number: int
    prompt: str | tuple[Message, ...]
    answer: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Response:
    """What a language model answered.

    Attributes:
        tokens: as sampled, the one that ended it included.
        text: decoded, without special tokens and without the string that ended it.
        truncated: whether it was cut off at the longest length, and not ended by the model.
    """

    tokens: tuple[int, ...]
    text: str
    truncated: bool = False


@runtime_checkable
class Grader(Protocol):
    """What scores responses."""

    def __call__(self, problems: Sequence[TextProblem], responses: Sequence[Response], /) -> list[Outcome]:
        """Return the outcome of each response to the problem in the same row."""
        ...
