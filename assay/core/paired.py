"""Two policies on the same problems: intervals and tests that use the pairing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.intervals import check_level
from assay.core.streams import Stream, uniforms
from assay.errors import InputError

EXACT_WORK = 2**26
"""Most additions an exact sign-flip test may take; beyond it, sign patterns are sampled."""

DRAWS = 99_999
"""Sign patterns that are sampled there."""

_OCCASION = 2**32 - 1  # an address that no evaluation of a step has
_BITS = 53  # random bits in one uniform
_CHUNK = 2**22  # bits held at once


def paired_score(gained: int, lost: int, pairs: int, *, level: float = 0.95) -> tuple[float, float]:
    """Return Tango's score interval of a difference of two success probabilities, from one answer each a problem.

    The set of differences d that the score test of paired proportions does not reject:
    ``|gained - lost - n d| <= z sqrt(n (2 q + d - d²))``, where q is the most likely probability of "lost" under d. It
    has width when no pair is discordant: its ends are then ``± z² / (n + z²)``.

    Assumptions: problems are independent draws from a population; the difference is of its shares answered right. For
    greedy answers to these very problems there is nothing random: the difference observed is the difference. Coverage
    is near ``level`` on average and can fall a little below it: by enumeration over 10, 20 and 40 pairs, down to 0.92.

    Source: Tango, "Equivalence test and confidence interval for the difference in proportions for the paired-sample
    design", Statistics in Medicine 1998.

    Args:
        gained: pairs in which only the second is right.
        lost: pairs in which only the first is right.
        pairs: all pairs, at least 1.
        level: nominal coverage, in (0, 1).

    Returns:
        The ends of the interval of second minus first, within [-1, 1].

    Raises:
        InputError: the counts are impossible, or the level is not in (0, 1).
    """
    check_level(level)
    if min(gained, lost) < 0 or pairs < 1 or gained + lost > pairs:
        raise InputError(f"{gained} gained and {lost} lost of {pairs} pairs: need counts that fit in at least 1 pair")
    from scipy.special import ndtri

    z2 = float(ndtri((1 + level) / 2)) ** 2

    def rejected(d: float) -> bool:
        b = (2 * pairs - gained + lost) * d - gained - lost
        q = (math.sqrt(max(0.0, b * b + 8 * pairs * lost * d * (1 - d))) - b) / (4 * pairs)
        return bool((gained - lost - pairs * d) ** 2 > z2 * pairs * (2 * q + d * (1 - d)))

    observed = (gained - lost) / pairs
    return _edge(rejected, observed, -1.0), _edge(rejected, observed, 1.0)


def mcnemar(gained: int, lost: int) -> float:
    """Return the two-sided p-value of McNemar's exact test.

    Under the hypothesis a discordant pair is as likely gained as lost, so that the smaller count is binomial with
    probability 1/2: ``min(1, 2 P(X <= min(gained, lost)))``, in exact integers up to the one division. No mid-p.

    Assumptions: the pairs are independent. It does not show how large the difference is: see :func:`paired_score`.

    Source: McNemar, "Note on the sampling error of the difference between correlated proportions or percentages",
    Psychometrika 1947.

    Args:
        gained: pairs in which only the second is right.
        lost: pairs in which only the first is right.

    Raises:
        InputError: a count is negative.
    """
    if min(gained, lost) < 0:
        raise InputError(f"{gained} gained and {lost} lost: counts of discordant pairs cannot be negative")
    discordant = gained + lost
    tail = sum(math.comb(discordant, count) for count in range(min(gained, lost) + 1))
    return min(2 * tail, 1 << discordant) / (1 << discordant)


def sign_flip(differences: Sequence[int], *, seed: int = 0, exact_work: int = EXACT_WORK, draws: int = DRAWS) -> float:
    """Return the two-sided p-value of the paired permutation test over problems.

    The share of all 2^n patterns of signs under which the differences add up to at least as much, in absolute value,
    as they do. It is exact, by adding one difference at a time to the distribution of the sum, up to ``exact_work``
    additions: always, with hundreds of problems and tens of samples. Beyond, patterns are sampled at addresses of
    their own and the p-value is ``(b + 1) / (m + 1)`` for b as extreme of m, which never understates it on average.

    Assumptions: problems are independent and, under the hypothesis, swapping the two policies on a problem changes
    nothing. That is stronger than a mean difference of 0. It does not show how large the difference is. With
    differences of -1, 0 and 1 it is McNemar's exact test.

    Source: Fisher, "The design of experiments", 1935; Phipson and Smyth, "Permutation p-values should never be zero",
    2010.

    Args:
        differences: one a problem, in any common unit that makes them integers: ties are then exact.
        seed: names the sampled patterns.
        exact_work: most additions that an exact answer may take.
        draws: patterns sampled otherwise, at least 1.

    Raises:
        InputError: the absolute differences add up to 2**53 or more.
    """
    unit = math.gcd(*differences) or 1
    sizes = sorted(abs(value) // unit for value in differences if value)
    observed, total = abs(sum(differences)) // unit, sum(sizes)
    if total >= 2**53:
        raise InputError(f"differences that add up to {total} units: they need a coarser common unit, below 2**53")
    if len(sizes) * total <= exact_work:
        chance = _signed_sums(sizes)
        extreme = np.abs(2 * np.arange(total + 1) - total) >= observed
        return min(1.0, float(chance[extreme].sum()))
    hits = sum(int((flipped.abs() >= observed).sum()) for flipped in _sampled_sums(sizes, seed, draws))
    return (hits + 1) / (draws + 1)


def _edge(rejected: Callable[[float], bool], inside: float, outside: float) -> float:
    """Return where a test begins to reject, between an accepted and a rejected value, to the last bits by bisection."""
    if not rejected(outside):
        return outside
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if rejected(middle) else (middle, outside)
    return outside


def _signed_sums(sizes: list[int]) -> Float[np.ndarray, " S"]:
    """Return the distribution of the sum of those sizes whose sign is plus, each with probability one half."""
    chance = np.zeros(sum(sizes) + 1)
    chance[0] = 1.0
    reach = 0
    for size in sizes:
        part = chance[: reach + 1] / 2
        reach += size
        chance[: reach + 1] = 0.0
        chance[: len(part)] += part
        chance[size : reach + 1] += part
    return chance


def _sampled_sums(sizes: list[int], seed: int, draws: int) -> Iterator[Float[Tensor, " D"]]:
    """Yield sums of the sizes under sampled signs, some draws at a time; a sum below 2**53 is exact in float64."""
    weights = torch.tensor(sizes, dtype=torch.float64)
    words = -(-len(sizes) // _BITS)
    rows = max(1, _CHUNK // (words * _BITS))
    for first in range(0, draws, rows):
        numbers = list(range(first, min(first + rows, draws)))
        drawn = uniforms(seed, Stream.EVALUATION, words, step=_OCCASION, problem=[0] * len(numbers), sample=numbers)
        word = (drawn * 2**_BITS).long()[:, :, None]
        bits = (word >> torch.arange(_BITS) & 1).flatten(1)[:, : len(sizes)]
        yield (2 * bits - 1).double() @ weights
