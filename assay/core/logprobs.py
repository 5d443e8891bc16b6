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
