"""All trajectories of a problem and their log-probabilities, with shared prefixes scored together."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.logprobs import shifted_input
from assay.types import Policy


def all_responses(tokens: int, depth: int) -> Int[Tensor, "M T"]:
    """Return all ``tokens ** depth`` responses in lexicographic order, ``[M, depth]``."""
    return torch.cartesian_prod(*[torch.arange(tokens)] * depth).view(-1, depth)


def tree_logp(policy: Policy, prompt: Int[Tensor, "P S"], *, tokens: int, depth: int) -> Float[Tensor, "P M"]:
    """Return the log-probability of every response of every problem, with gradient.

    One forward scores the ``tokens ** (depth - 1)`` parents of the leaves; every leaf is an entry of its parent's
    distribution. That is ``tokens`` times fewer rows than scoring each response.

    Args:
        policy: its response vocabulary has ``tokens`` entries.
        prompt: prompt tokens of P problems.
        tokens: branching of the tree.
        depth: tokens in a response.

    Returns:
        ``[P, M]`` in nats, responses in the order of :func:`all_responses`, summed over their tokens.
    """
    problems, leaves = len(prompt), tokens**depth
    parents = all_responses(tokens, depth)[::tokens].repeat(problems, 1)
    rows = prompt.repeat_interleave(leaves // tokens, dim=0)
    logp = policy(shifted_input(rows, parents))[:, -depth:].log_softmax(-1)
    prefix = logp[:, :-1].gather(-1, parents[:, :-1, None])[..., 0].sum(1)
    return (prefix[:, None] + logp[:, -1]).view(problems, leaves)
