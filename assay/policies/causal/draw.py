"""One draw: a token a row and the log-probability that it was drawn with, from one set of logits."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.errors import UpdateError
from assay.policies.causal.head import support_cut

BLOCK = 256
"""Tokens whose probabilities are summed up before any of them is looked at."""


def draw(
    logits: Float[Tensor, "B V"], uniform: Float[Tensor, " B"], *, top_k: int = 0, top_p: float = 1.0
) -> tuple[Int[Tensor, " B"], Float[Tensor, " B"]]:
    """Draw a token from each row by inverting its cumulative distribution, in two steps.

    First the block of the vocabulary in which the uniform falls, then the token in it. That reads each probability
    once, where a cumulative sum over the vocabulary, or a race of exponentials, costs several times as much.

    Args:
        logits: already over the temperature; overwritten.
        uniform: float64 in [0, 1).
        top_k: tokens that may be drawn, the likeliest; 0 for all.
        top_p: mass of the tokens that may be drawn.

    Returns:
        The tokens, and the log-probability that each had, in nats.

    Raises:
        UpdateError: a logit is NaN, or the largest of a row infinite.
    """
    top = logits.amax(-1, keepdim=True)
    if not bool(top.isfinite().all()):
        raise UpdateError(f"logits of {float(top[~top.isfinite()][0])}: the policy is not finite, nothing can be drawn")
    cut = support_cut(logits, top_k=top_k, top_p=top_p)
    if cut is not None:
        logits = logits.masked_fill_(logits < cut[:, None], float("-inf"))
    rows = torch.arange(len(logits), device=logits.device)
    weights = logits.sub_(top).exp_()
    blocks = torch.nn.functional.pad(weights, (0, -logits.shape[1] % BLOCK)).view(len(logits), -1, BLOCK)
    upto = blocks.sum(-1).double().cumsum(-1)
    threshold = uniform.to(upto.device) * upto[:, -1]
    block = _first_above(upto, threshold)
    before = torch.where(block > 0, upto[rows, block - 1], 0.0)
    inside = blocks[rows, block].double().cumsum(-1)
    token = _first_above(inside, threshold - before)
    weight = blocks[rows, block, token]
    return block * BLOCK + token, (weight.double() / upto[:, -1]).log().to(logits.dtype)


def greedy(logits: Float[Tensor, "B V"]) -> Int[Tensor, " B"]:
    """Return the likeliest token of each row, the first of equals."""
    return logits.argmax(-1)


def _first_above(cumulative: Float[Tensor, "B N"], threshold: Float[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Return the first place whose cumulative sum exceeds the threshold, or, where rounding left none, the last that
    adds anything."""
    first = torch.searchsorted(cumulative, threshold[:, None], right=True)[:, 0]
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())[:, 0]
    return torch.minimum(first, last)
