"""Random numbers that are addressed, not drawn.

A number is a function of its address ``(seed, stream, step, problem, sample, index)``. It is the same
whatever the batch size, the order of work, or the point from which a run is resumed, and two
streams never share a number: evaluation cannot touch training.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch
from jaxtyping import Float, UInt64
from torch import Tensor

Words = UInt64[np.ndarray, " B"]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)
SEED_LIMIT = 2**32


class Stream(IntEnum):
    """What a random number is for. Warm-up is full-batch and draws none."""

    DATA = 0
    INIT = 1
    ROLLOUT = 2
    EVALUATION = 3


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, Words, Words, Words]:
    """Apply the Philox4x32-10 block function to a vector of counters under one key.

    Ten rounds of ``(x0, x1, x2, x3) -> (hi(M1 x2) ^ x1 ^ k0, lo(M1 x2), hi(M0 x0) ^ x3 ^ k1, lo(M0 x0))``.

    Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

    Args:
        counter: four vectors ``[B]`` of 32-bit words, each held in a uint64.
        key: two 32-bit words.

    Returns:
        Four vectors ``[B]`` of 32-bit words, held in uint64.
    """
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(10):
        low, high = x0 * _MULTIPLIERS[0], x2 * _MULTIPLIERS[1]
        x0, x1 = (high >> _WORD) ^ x1 ^ np.uint64(k0), high & _LOW
        x2, x3 = (low >> _WORD) ^ x3 ^ np.uint64(k1), low & _LOW
        k0, k1 = (k0 + _KEY_STEPS[0]) & 0xFFFFFFFF, (k1 + _KEY_STEPS[1]) & 0xFFFFFFFF
    return x0, x1, x2, x3


def uniforms(
    seed: int, stream: Stream, count: int, *, step: int = 0, problem: list[int], sample: list[int]
) -> Float[Tensor, "B count"]:
    """Return ``count`` uniforms in [0, 1) for each address ``(step, problem[b], sample[b])``.

    The counter is ``(index // 2, sample, problem, step)`` and the key ``(seed, stream)``; a block's four
    words make two 53-bit uniforms.

    Args:
        seed: in [0, 2**32).
        stream: what the numbers are for.
        count: how many numbers each address gets, at least 1.
        step: training step, or any other number that sets one occasion apart from the next.
        problem: ``B`` problem numbers.
        sample: ``B`` sample numbers within their problem.

    Returns:
        float64, ``[B, count]``.
    """
    blocks = (count + 1) // 2
    rows = len(problem)
    counter = (
        np.tile(np.arange(blocks, dtype=np.uint64), rows),
        np.repeat(np.asarray(sample, dtype=np.uint64), blocks),
        np.repeat(np.asarray(problem, dtype=np.uint64), blocks),
        np.full(rows * blocks, step, dtype=np.uint64),
    )
    a, b, c, d = philox(counter, (seed, int(stream)))
    pairs = np.stack([_to_unit(a, b), _to_unit(c, d)], axis=1)
    return torch.from_numpy(pairs.reshape(rows, 2 * blocks)[:, :count])


def normals(seed: int, stream: Stream, count: int, *, problem: int = 0) -> Float[Tensor, " count"]:
    """Return ``count`` standard normals at one address, as the inverse normal CDF of its uniforms."""
    u = uniforms(seed, stream, count, problem=[problem], sample=[0])[0]
    values: Tensor = torch.special.ndtri(u + 2.0**-54)
    return values


def _to_unit(high: Words, low: Words) -> Float[np.ndarray, " B"]:
    """Join 27 and 26 bits of two words into a float64 in [0, 1)."""
    return ((high >> np.uint64(5)) * 67108864.0 + (low >> np.uint64(6))) / 9007199254740992.0
