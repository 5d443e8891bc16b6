"""A trial of a model that was just loaded: does a packed row say what Transformers says of each response alone?

Not every architecture leaves all that passes between tokens to the attention that it is given. One with an attention of
its own, a convolution or a state would read one response while it reads the next; one that caps or shifts its logits
would be scored without. Nothing else would show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.errors import ConfigError
from assay.policies.causal.attention import NAME
from assay.policies.causal.layouts import Packed
from assay.policies.causal.model import CausalPolicy
from assay.policies.causal.pack import pack

PROMPT, RESPONSES = (1, 2, 3), ((4, 5, 6), (7, 8, 9))
ROUNDING = 1e-3
"""Largest difference of logits, over the largest of them, that is taken for rounding, in the weights' type."""


@torch.no_grad()
def check_packing(policy: CausalPolicy, *, name: str) -> None:
    """Read two short responses to one prompt in a packed row and, plainly, one by one; compare the logits.

    Args:
        policy: of a model that was just loaded.
        name: of the model, for messages.

    Raises:
        ConfigError: they differ, or the model cannot read a packed row at all.
    """
    prompt, *responses = ([token % policy.vocabulary for token in tokens] for tokens in (PROMPT, *RESPONSES))
    kind = type(policy.causal).__name__
    try:
        row = pack([prompt], [responses]).to(policy.device)
        exact = CausalPolicy(policy.model)  # without bfloat16
        packed = exact.head().logits(exact.hidden(row.tokens, row.positions, Packed(row)))
        rows = [_plain(policy, [*prompt, *said[:-1]]) for said in responses]
    except Exception as error:  # the model's own code runs, and may expect anything
        raise ConfigError(
            f"model = {name}: {kind} cannot read a packed row ({error}); use another architecture"
        ) from error
    plain = torch.cat([rows[0], *(states[len(prompt) :] for states in rows[1:])])
    if not float((packed - plain).abs().max()) <= ROUNDING * float(plain.abs().max()):
        raise ConfigError(
            f"model = {name}: {kind} says something else of a packed row than of each response alone, because it does "
            "not leave all attention to what it is given, or changes its logits afterwards; use another architecture"
        )


def _plain(policy: CausalPolicy, tokens: list[int]) -> Float[Tensor, "S V"]:
    with _eager(policy.causal):
        made = policy.causal(input_ids=torch.tensor([tokens], device=policy.device), use_cache=False)
    logits: Tensor = made.logits[0]
    return logits


@contextmanager
def _eager(model: Any) -> Iterator[None]:
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(NAME)
