"""The same weights through Transformers' own forward: eager attention, one padded row a response, no cache, no packing.

It is what everything else is compared with. Temperature, top-k and top-p are those of
:func:`assay.core.logprobs.processed_logp`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.core.logprobs import processed_logp
from assay.policies.causal.attention import register
from assay.policies.causal.model import CausalPolicy
from assay.training.language.update import Drawing

LEFT_OUT = -100.0
"""Logit of a token that cannot be drawn: a probability below 1e-40, and no infinity to differentiate through."""


class Plain:
    """A policy's weights as a next-token model; see :class:`assay.types.Policy`.

    Args:
        policy: whose weights.
        drawing: how responses are drawn from it.
    """

    def __init__(self, policy: CausalPolicy, drawing: Drawing) -> None:
        self._policy, self._drawing = policy, drawing

    def __call__(self, tokens: Int[Tensor, "B S"], /) -> Float[Tensor, "B S V"]:
        """Return logits over the temperature; a token that is cut has a fixed one that is out of reach."""
        drawing, made = self._drawing, self.logits(tokens)
        kept = processed_logp(made.detach(), drawing.temperature, drawing.top_k, drawing.top_p) > float("-inf")
        return (made / drawing.temperature).masked_fill(~kept, LEFT_OUT)

    def logits(self, tokens: Int[Tensor, "B S"]) -> Float[Tensor, "B S V"]:
        """Return the model's own logits."""
        with _eager(self._policy.causal):
            made: Tensor = self._policy.causal(input_ids=tokens, use_cache=False).logits
        return made

    def after(self, prompt: Sequence[int], responses: Int[Tensor, "G T"]) -> Float[Tensor, "G T V"]:
        """Return the logits that each token of some responses to one prompt is predicted from."""
        asked = torch.tensor(prompt).expand(len(responses), -1)
        return self(torch.cat([asked, responses], dim=1))[:, len(prompt) - 1 : -1]

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield what is trained, by name."""
        return self._policy.trained()


@contextmanager
def _eager(model: Any) -> Iterator[None]:
    """Give a model Transformers' own attention and keep its activations, and afterwards put it back."""
    training = model.training
    model.set_attn_implementation("eager")
    model.eval()
    try:
        yield
    finally:
        model.set_attn_implementation(register())
        model.train(training)
