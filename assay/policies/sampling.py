"""Sampling and scoring. One place gives the draw and its log-probability, so on-policy holds by construction."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.logprobs import response_logp, shifted_input
from assay.types import Policy


def inverse_cdf(probability: Float[Tensor, "B V"], uniform: Float[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Draw one token a row by inverting its cumulative distribution.

    Args:
        probability: non-negative, rows need not be normalised.
        uniform: float64 in [0, 1), one a row.

    Returns:
        The first token whose cumulative probability exceeds ``uniform`` times the row's total.
    """
    cumulative = probability.double().cumsum(-1)
    threshold = uniform[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp(max=probability.shape[1] - 1)


@torch.no_grad()
def sample(
    policy: Policy, prompt: Int[Tensor, "P S"], group: Int[Tensor, " B"], uniform: Float[Tensor, "B T"]
) -> tuple[Int[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Sample T tokens a row in T consecutive forwards, without gradient.

    The first forward reads each distinct prompt once, whatever the number of rows that answer it.

    Args:
        policy: the current policy, at temperature 1 over its whole response vocabulary.
        prompt: tokens of the distinct prompts.
        group: which prompt each row answers.
        uniform: one addressed number for each token to draw.

    Returns:
        The sampled tokens and the log-probability the sampler drew each with.
    """
    first = policy(prompt)[:, -1].log_softmax(-1)[group]
    tokens, drawn = prompt[group], []
    for t in range(uniform.shape[1]):
        logp = policy(tokens)[:, -1].log_softmax(-1) if t else first
        token = inverse_cdf(logp.exp(), uniform[:, t])[:, None]
        drawn.append(logp.gather(1, token))
        tokens = torch.cat([tokens, token], dim=1)
    return tokens[:, prompt.shape[1] :], torch.cat(drawn, dim=1)


def score(policy: Policy, prompt: Int[Tensor, "B S"], response: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return the log-probability of each response token, in one forward, with gradient."""
    return response_logp(policy(shifted_input(prompt, response)), response)


def score_stepwise(policy: Policy, prompt: Int[Tensor, "B S"], response: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Score as :func:`score` does, but token by token, as the sampler reads: an independent check of the shift."""
    tokens, columns = prompt, []
    for t in range(response.shape[1]):
        logits = policy(tokens)[:, -1]
        chosen = response[:, t]
        columns.append(logits[torch.arange(len(chosen)), chosen] - logits.logsumexp(-1))
        tokens = torch.cat([tokens, chosen[:, None]], dim=1)
    return torch.stack(columns, dim=1)
