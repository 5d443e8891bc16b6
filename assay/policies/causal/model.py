"""A causal language model of Transformers as a policy over packed rows."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.errors import ConfigError
from assay.policies.causal.attention import Layout, laid_out
from assay.policies.causal.head import Head, TokenLogp, support_cut, token_logp
from assay.policies.causal.layouts import Packed
from assay.policies.causal.pack import Pack, pack

ROWS = 64
"""Rows whose whole vocabulary is looked at at once, where top-k or top-p asks for it."""


class CausalPolicy:
    """A causal language model whose groups share their prompts.

    Args:
        model: an ``AutoModelForCausalLM`` with our attention (:func:`assay.policies.causal.attention.register`), or a
            ``peft`` model over one.
        autocast: type of the body's matrix products; None for that of the weights.
        adapters: False for the policy that a ``peft`` model is without its adapters.

    Raises:
        ConfigError: the model's last map is not linear.
    """

    def __init__(self, model: nn.Module, *, autocast: torch.dtype | None = None, adapters: bool = True) -> None:
        self.model = model
        self._autocast, self._adapters = autocast, adapters
        adapted: Any = model
        self.causal: Any = adapted.get_base_model() if hasattr(adapted, "get_base_model") else adapted
        self._last = self.causal.get_output_embeddings()
        if not isinstance(self._last, nn.Linear):
            kind = type(self._last).__name__
            raise ConfigError(f"{type(self.causal).__name__}: its last map is {kind}; only a linear one can be sliced")
        config = self.causal.config
        self._logit_scale = getattr(config, "logit_scale", None) or 1.0 / (
            getattr(config, "logits_scaling", None) or 1.0
        )

    @property
    def device(self) -> torch.device:
        """Return where the weights are."""
        device: torch.device = self._last.weight.device
        return device

    @property
    def vocabulary(self) -> int:
        """Return the number of tokens that have a logit."""
        return len(self._last.weight)

    def trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters that are trained, by name; tied ones once."""
        return ((name, value) for name, value in self.model.named_parameters() if value.requires_grad)

    def base(self) -> CausalPolicy:
        """Return the policy that is not trained: without adapters where there are any, otherwise a frozen copy."""
        if self.model is not self.causal:
            return CausalPolicy(self.model, autocast=self._autocast, adapters=False)
        frozen = copy.deepcopy(self.model).requires_grad_(False)
        for parameter in frozen.parameters():
            parameter.grad = None
        return CausalPolicy(frozen, autocast=self._autocast)

    def frozen(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights that are not trained, by name: all of a frozen copy, the base under adapters."""
        return ((name, value) for name, value in self.model.named_parameters() if not value.requires_grad)

    def head(self, temperature: float = 1.0) -> Head:
        """Return the last map, with logits divided by a temperature."""
        return Head(self._last.weight, self._last.bias, self._logit_scale / temperature)

    def hidden(self, tokens: Int[Tensor, " S"], positions: Int[Tensor, " S"], layout: Layout) -> Float[Tensor, "S D"]:
        """Return the last hidden state of each token of one row, under what the layout lets it read."""
        with laid_out(layout), self._casting(), self._adapting():
            made = self.causal.base_model(input_ids=tokens[None], position_ids=positions[None], use_cache=False)
        states: Tensor = made.last_hidden_state[0]
        return states

    def token_logp(
        self,
        pack: Pack,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        reference: CausalPolicy | None = None,
    ) -> TokenLogp:
        """Return the log-probability of every response token of a packed row, with gradient.

        Args:
            pack: the row.
            temperature: that the responses were drawn at.
            top_k: likewise; what it cuts is held fixed in the gradient.
            top_p: likewise.
            reference: where given, the exact KL to it comes too, at temperature and over the whole vocabulary.
        """
        place, row = torch.unique(pack.source, return_inverse=True)
        states = self._states(pack, place)
        head = self.head(temperature)
        given = None
        if reference is not None:
            with torch.no_grad():
                given = (reference.head(temperature), reference._states(pack, place))
        return token_logp(head, states, row, pack.target, cut=_cuts(head, states, top_k, top_p), reference=given)

    @torch.no_grad()
    def next_logp(
        self,
        prompt: Sequence[int],
        prefixes: Sequence[Sequence[int]],
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
    ) -> Float[Tensor, "N V"]:
        """Return the log-probability of every token after each of some beginnings of a response; -inf where cut.

        Args:
            prompt: read once for all of them.
            prefixes: tokens said so far; none at all for the beginning.
            temperature: logits are divided by it.
            top_k: tokens that may be drawn; 0 for all.
            top_p: mass of the tokens that may be drawn.
        """
        row = pack([prompt], [[(*prefix, 0) for prefix in prefixes]]).to(self.device)
        ends = row.lengths.cumsum(0) - 1
        head = self.head(temperature)
        logits = head.logits(self._states(row, row.source[ends])).double()
        cut = support_cut(logits, top_k=top_k, top_p=top_p)
        if cut is not None:
            logits = logits.masked_fill(logits < cut[:, None], float("-inf"))
        return logits.log_softmax(-1)

    def _states(self, pack: Pack, place: Int[Tensor, " N"]) -> Float[Tensor, "N D"]:
        return self.hidden(pack.tokens, pack.positions, Packed(pack))[place]

    def _adapting(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._adapters else self.model.disable_adapter()  # type: ignore[operator]

    def _casting(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, dtype=self._autocast) if self._autocast else nullcontext()


@torch.no_grad()
def _cuts(head: Head, states: Tensor, top_k: int, top_p: float) -> Tensor | None:
    if not top_k and top_p >= 1:
        return None
    parts = [support_cut(head.logits(rows), top_k=top_k, top_p=top_p) for rows in states.detach().split(ROWS)]
    return torch.cat([part for part in parts if part is not None])
