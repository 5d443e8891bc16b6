"""Weights: how the terms of a loss are averaged. Counts are arguments, so no split of a batch can change them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def sequence_mean(rows: int, *, total: int, dtype: torch.dtype = torch.float32) -> Float[Tensor, " rows"]:
    """Return weights ``1 / total`` for ``rows`` responses of a batch of ``total``.

    Args:
        rows: responses at hand, perhaps one micro-batch of several.
        total: responses in the whole batch.
        dtype: of the weights.
    """
    return torch.full((rows,), 1.0 / total, dtype=dtype)


def trajectory_mass(logp: Float[Tensor, "P M"]) -> Float[Tensor, "P M"]:
    """Return weights ``sg[p(y)] / P``: the exact expectation over M trajectories, averaged over P problems.

    The exact counterpart of :func:`sequence_mean`: a mean over samples estimates what these weights compute.

    Args:
        logp: log-probability of every trajectory of every problem.
    """
    return logp.detach().exp() / len(logp)
