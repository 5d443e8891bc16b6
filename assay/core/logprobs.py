"""From logits to the log-probabilities of a response. The shift by one happens here and nowhere else."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def shifted_input(prompt: Int[Tensor, "B S"], response: Int[Tensor, "B T"]) -> Int[Tensor, "B S+T-1"]:
    """Return the tokens to feed so that the last T positions predict the T response tokens.

    That is the prompt and the response without its last token, which nothing is predicted from.
    """
    return torch.cat([prompt, response[:, :-1]], dim=1)


def response_logp(logits: Float[Tensor, "B L V"], response: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return the log-probability of each response token, in nats.

    ``out[b, t]`` belongs to ``response[b, t]``, *the token being predicted*, given everything before it.

    Args:
        logits: what the policy returns for :func:`shifted_input`, ``L = S + T - 1``.
        response: the tokens to score.
    """
    predicting = logits[:, -response.shape[1] :].log_softmax(-1)
    return predicting.gather(-1, response[..., None])[..., 0]


def processed_logp(
    logits: Float[Tensor, "*rows V"],
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Float[Tensor, "*rows V"]:
    """Return the log-probabilities that tokens are drawn with, -inf where a token is cut.

    The order is that of Transformers: temperature, top-k, top-p, min-p.

    Args:
        logits: of the next token.
        temperature: positive; logits are divided by it.
        top_k: keep that many of the likeliest tokens; 0 keeps all.
        top_p: keep the fewest likeliest tokens that have this mass together; 1 keeps all.
        min_p: keep tokens at least this fraction as likely as the likeliest; 0 keeps all.
    """
    scaled = logits / temperature
    if top_k:
        kth = scaled.topk(min(top_k, scaled.shape[-1])).values[..., -1:]
        scaled = scaled.masked_fill(scaled < kth, float("-inf"))
    if top_p < 1:
        probability, order = scaled.softmax(-1).sort(descending=True)
        cut = (probability.cumsum(-1) - probability >= top_p).gather(-1, order.argsort(-1))
        scaled = scaled.masked_fill(cut, float("-inf"))
    if min_p:
        probability = scaled.softmax(-1)
        scaled = scaled.masked_fill(probability < min_p * probability.amax(-1, keepdim=True), float("-inf"))
    return scaled.log_softmax(-1)
