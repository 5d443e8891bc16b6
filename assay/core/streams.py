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

_ROUNDS = 10
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_KEY_STEPS = np.array([0x9E3779B9, 0xBB67AE85], dtype=np.uint64)
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)
SEED_LIMIT = 2**32


class Stream(IntEnum):
    """What a random number is for. Warm-up is full-batch and draws none."""

    DATA = 0
    INIT = 1
    ROLLOUT = 2
    EVALUATION = 3


def philox(counter: UInt64[np.ndarray, "4 B"], key: tuple[int, int]) -> UInt64[np.ndarray, "4 B"]:
    """Apply the Philox4x32-10 block function to a vector of counters under one key.

    Ten rounds of ``(x0, x1, x2, x3) -> (hi(M1 x2) ^ x1 ^ k0, lo(M1 x2), hi(M0 x0) ^ x3 ^ k1, lo(M0 x0))``, here with
    ``even = (x0, x2)`` and ``odd = (x1, x3)`` as two rows of one array.

    Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

    Args:
        counter: four rows of 32-bit words, each held in a uint64.
        key: two 32-bit words.

    Returns:
        Four rows of 32-bit words, held in uint64.
    """
    schedule = (np.array(key, dtype=np.uint64) + np.arange(_ROUNDS, dtype=np.uint64)[:, None] * _KEY_STEPS) & _LOW
    even, odd = counter[0::2], counter[1::2]
    for round_key in schedule[:, :, None]:
        product = even * _MULTIPLIERS
        even, odd = (product >> _WORD)[::-1] ^ odd ^ round_key, (product & _LOW)[::-1]
    return np.stack([even[0], odd[0], even[1], odd[1]])


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
    counter = np.empty((4, rows, blocks), dtype=np.uint64)
    counter[0] = np.arange(blocks)
    counter[1] = np.array(sample)[:, None]
    counter[2] = np.array(problem)[:, None]
    counter[3] = step
    high, low = philox(counter.reshape(4, -1), (seed, int(stream))).reshape(2, 2, rows, blocks).swapaxes(0, 1)
    units = _to_unit(high, low).transpose(1, 2, 0)
    return torch.from_numpy(units.reshape(rows, 2 * blocks)[:, :count])


def normals(seed: int, stream: Stream, count: int, *, problem: int = 0) -> Float[Tensor, " count"]:
    """Return ``count`` standard normals at one address, as the inverse normal CDF of its uniforms."""
    u = uniforms(seed, stream, count, problem=[problem], sample=[0])[0]
    values: Tensor = torch.special.ndtri((u + 2.0**-54).clamp(max=1 - 2.0**-53))  # open at both ends
    return values


def _to_unit(high: UInt64[np.ndarray, "*shape"], low: UInt64[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Join 27 and 26 bits of two words into a float64 in [0, 1)."""
    return ((high >> np.uint64(5)) * 2.0**26 + (low >> np.uint64(6))) / 2.0**53
