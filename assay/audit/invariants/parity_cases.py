"""Batches on which two paths of one loss are compared, each with one thing that such paths forget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.advantages import leave_one_out
from assay.core.streams import Stream, normals, uniforms

Inputs = Mapping[str, Any]
"""What both paths are called with, by parameter name."""


def loss_cases(*, seed: int = 0) -> dict[str, Inputs]:
    """Return batches that two paths of one loss are compared on, each with one thing the plainest has not.

    Each holds ``logp``, ``logp_old``, ``logp_ref``, ``logp_sampler``, ``mask`` ``[B, T]``; ``reward``, ``adv``
    (leave-one-out), ``group``, ``sample_mask`` (0.0 for a response that does not train) ``[B]``; and ``accumulation``,
    the number of micro-batches of consecutive rows in which the batch is seen. Everything is float64.
    """
    even, uneven = [3, 3, 3, 3], [1, 3, 4, 2]
    return {
        "even lengths": _batch(seed, even),
        "uneven lengths": _batch(seed, uneven),
        "an old policy that differs": _batch(seed, even, old=0.4),
        "a sampler that differs": _batch(seed, even, sampler=0.4),
        "a response that does not train": _batch(seed, even, dropped=1),
        "two micro-batches": _batch(seed, even, accumulation=2),
        "two micro-batches of uneven lengths": _batch(seed, uneven, accumulation=2),
        "all of these": _batch(seed, uneven, old=0.4, sampler=0.4, dropped=1, accumulation=2),
    }


def _batch(
    seed: int, lengths: list[int], *, old: float = 0.0, sampler: float = 0.0, dropped: int = 0, accumulation: int = 1
) -> Inputs:
    """Return two groups of responses of given lengths; ``logp_old`` is ``old`` away from ``logp``, and the
    sampler's log-probabilities ``sampler`` from those."""
    rows, longest = len(lengths), max(lengths)

    def noise(address: int) -> Float[Tensor, "B T"]:
        return normals(seed, Stream.DATA, rows * longest, problem=address).view(rows, longest)

    mask = (torch.arange(longest) < torch.tensor(lengths)[:, None]).double()
    logp = -0.2 - noise(0).abs()
    logp_old = logp + old * noise(1)
    reward = uniforms(seed, Stream.DATA, rows, problem=[1], sample=[0])[0]
    group = torch.arange(rows) // 2
    return {
        "logp": logp * mask,
        "logp_old": logp_old * mask,
        "logp_ref": (logp + 0.5 * noise(2)) * mask,
        "logp_sampler": (logp_old + sampler * noise(3)) * mask,
        "mask": mask,
        "reward": reward,
        "adv": leave_one_out(reward, group),
        "group": group,
        "sample_mask": (torch.arange(rows) >= dropped).double(),
        "accumulation": accumulation,
    }
