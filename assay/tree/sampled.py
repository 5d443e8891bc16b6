"""Past the budget: batches are drawn, and what is said carries its interval.

The first half of the batches picks a direction of the error, the second half measures the error along it; so the
interval is that of one mean, however many weights there are. A bias that is found is a bias. One that is not found may
still be there: sampling refutes, it proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.streams import Stream, uniforms
from assay.tree.groups import CHUNK, Atoms, Slopes, batch_gradients

MISS = 1e-4
"""How often an interval may miss, if no tail is longer than the one that was seen."""
BATCHES = 20_000
ROWS = 2_000_000
"""Most responses to draw; with large groups there are fewer batches."""


@dataclass(frozen=True)
class SampledMoments:
    """What drawn batches say of a loss's gradient.

    Attributes:
        mean: average over all of them; minus it is what is ascended.
        variance: trace of the sample covariance of one batch.
        bias: ascent minus the stated gradient along a direction that the first half picked, over the norm of the
            stated gradient: low and high end of its interval.
        coefficient: ascent along the stated gradient, 1 where they agree: low and high end of its interval.
        batches: how many were drawn.
    """

    mean: Float[Tensor, " D"]
    variance: float
    bias: tuple[float, float]
    coefficient: tuple[float, float]
    batches: int


def sampled_moments(
    slopes: Slopes,
    problems: Sequence[Atoms],
    sizes: Sequence[int],
    stated: Float[Tensor, " D"],
    *,
    batches: int = BATCHES,
    seed: int = 0,
) -> SampledMoments:
    """Draw batches of one group a problem and compare the mean ascent with a stated gradient.

    Args:
        slopes: evaluates the loss.
        problems: what the members of each problem's group are drawn from; atoms must be single responses.
        sizes: members of each problem's group.
        stated: the gradient that should be ascended, not zero.
        batches: how many to draw, an even number.
        seed: names the draws.
    """
    batches = max(min(batches, ROWS // sum(sizes)) // 2 * 2, 100)
    rows = []
    for start in range(0, batches, CHUNK):
        samples = list(range(start, min(start + CHUNK, batches)))
        groups = []
        for number, (atoms, size) in enumerate(zip(problems, sizes, strict=True)):
            u = uniforms(seed, Stream.EVALUATION, size, problem=[number] * len(samples), sample=samples)
            ends = atoms.chance.cumsum(0)
            groups.append(torch.searchsorted(ends / ends[-1], u.contiguous(), right=True).clamp(max=len(ends) - 1))
        slope = slopes([atoms.response[group] for atoms, group in zip(problems, groups, strict=True)])
        rows.append(-batch_gradients(problems, groups, slope)[0])
    ascent = torch.cat(rows)
    first, second = ascent[: batches // 2], ascent[batches // 2 :]
    error = first.mean(0) - stated
    direction = error / (float(error.norm()) or 1.0)
    norm = float(stated.norm())
    along = (ascent - ascent.mean(0)).square().sum() / (batches - 1)
    return SampledMoments(
        -ascent.mean(0),
        float(along),
        _interval((second - stated) @ direction / norm),
        _interval(ascent @ stated / norm**2),
        batches,
    )


def _interval(values: Float[Tensor, " N"]) -> tuple[float, float]:
    """Return the empirical Bernstein interval of a mean of independent values, with the range that was seen.

    ``half = sqrt(2 V L / n) + 3 R L / n`` with the variance V, the range R and ``L = log(3 / MISS)``. Importance
    weights have long tails; a tail that no draw showed is in no interval.

    Source: Audibert, Munos, Szepesvari, "Exploration-exploitation tradeoff using variance estimates", 2009.
    """
    log = math.log(3 / MISS)
    spread = float(values.max() - values.min())
    half = math.sqrt(2 * float(values.var()) * log / len(values)) + 3 * spread * log / len(values)
    centre = float(values.mean())
    return centre - half, centre + half
