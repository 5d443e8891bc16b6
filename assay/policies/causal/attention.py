"""The one attention function that Transformers models are given here, and the layout it works in.

Transformers lets a model's attention be any registered function. Ours asks the layout that is current, so that one
unchanged model reads a packed row, fills a cache, or extends it, with the weights and code of its own forward
everywhere else. No mask is built: a layout knows what each token may read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from assay.errors import InputError

NAME = "assay_shared"
"""What our attention is registered as in Transformers."""


@runtime_checkable
class Layout(Protocol):
    """What the tokens of a forward may read."""

    @property
    def longest(self) -> int:
        """Return the most tokens that any of them may read, itself included."""
        ...

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "H S D"],
        key: Float[Tensor, "K S D"],
        value: Float[Tensor, "K S D"],
        scale: float,
    ) -> Float[Tensor, "S H D"]:
        """Return what each token attends to in one layer."""
        ...


_current: ContextVar[Layout] = ContextVar("layout")


@contextmanager
def laid_out(layout: Layout) -> Iterator[None]:
    """Make a layout the one that attention works in."""
    token = _current.set(layout)
    try:
        yield
    finally:
        _current.reset(token)


def recomputed() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return what a checkpointed layer runs in at first, and in the backward, where its layout is no longer current."""
    return nullcontext(), laid_out(_current.get())


def register() -> str:
    """Make the function known to Transformers and return its name."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attention)
    return NAME


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    layout = _current.get(None)
    if layout is None:
        raise InputError("a model with shared attention was called without a layout; call it through its policy")
    given = {"dropout": dropout, "a mask": attention_mask, **{name: kwargs.get(name) for name in ("softcap", "s_aux")}}
    for name, odd in given.items():
        if odd is not None and not (isinstance(odd, float) and odd == 0.0):
            raise InputError(f"{type(module).__name__}: attention with {name} is not one that responses can share")
    if sliding_window is not None and layout.longest > sliding_window:
        raise InputError(
            f"{layout.longest} tokens are longer than the model's sliding window of {sliding_window}; use shorter ones"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    layer = module.layer_idx
    assert isinstance(layer, int)
    of = value.dtype  # under autocast, rotation leaves queries and keys in the wider type
    return layout.attend(layer, query[0].to(of), key[0].to(of), value[0], scale)[None], None
