"""How a sampler draws, as its settings say, and how a function is called with those of them that it names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from assay.audit.invariants.byname import call_by_name, parameters_of


@dataclass(frozen=True)
class Decoding:
    """How tokens are drawn: logits over the temperature, then what is kept.

    Attributes:
        temperature: positive.
        top_k: keep that many of the likeliest tokens; 0 keeps all.
        top_p: keep the fewest likeliest tokens that have this mass together; 1 keeps all.
        min_p: keep tokens at least this fraction as likely as the likeliest; 0 keeps all.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __str__(self) -> str:
        parts = [f"{name} {value:g}" for name, value in asdict(self).items() if value != getattr(_PLAIN, name)]
        return ", ".join(parts) or "temperature 1"


_PLAIN = Decoding()
TEMPERATURES = (1.0, 0.6, 1.7)
SUPPORTS: tuple[dict[str, Any], ...] = ({}, {"top_k": 2}, {"top_p": 0.7}, {"min_p": 0.4}, {"top_k": 3, "top_p": 0.8})


def decodings_of(sampler: Callable[..., Any]) -> list[Decoding]:
    """Return the settings to try a sampler under: only those that it takes are moved."""
    takes = parameters_of("the sampler", sampler, {"logits": None, **asdict(_PLAIN)})
    temperatures = TEMPERATURES if "temperature" in takes else (1.0,)
    supports = [support for support in SUPPORTS if support.keys() <= set(takes)]
    return [Decoding(temperature, **support) for temperature in temperatures for support in supports]


def called(what: str, function: Callable[..., Any], decoding: Decoding, /, **tensors: Tensor) -> Any:
    """Call a function with what it names of some tensors, of which it gets copies, and of the settings.

    Raises:
        SubjectError: it requires something else, or raises.
    """
    copies = {name: made.clone() for name, made in tensors.items()}
    return call_by_name(what, function, {**copies, **asdict(decoding)})
