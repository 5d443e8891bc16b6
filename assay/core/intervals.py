"""Confidence intervals of one probability, from independent trials that share it."""

from __future__ import annotations

import math

from assay.errors import InputError


def exact_binomial(successes: int, trials: int, *, level: float = 0.95) -> tuple[float, float]:
    """Return the Clopper-Pearson interval of a success probability.

    The set of p that neither one-sided exact binomial test at ``(1 - level) / 2`` rejects; its ends are
    quantiles of the beta distribution. Coverage is at least ``level`` for every p.

    Source: Clopper and Pearson, "The use of confidence or fiducial limits", Biometrika 1934.

    Args:
        successes: in ``[0, trials]``.
        trials: independent trials with one common probability, at least 1.
        level: coverage, in (0, 1).

    Raises:
        InputError: the counts are impossible, or the level is not in (0, 1).
    """
    _check(successes, trials, level)
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = betaincinv(successes, trials - successes + 1, tail) if successes else 0.0
    high = betaincinv(successes + 1, trials - successes, 1 - tail) if successes < trials else 1.0
    return float(low), float(high)


def wilson(successes: int, trials: int, *, level: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of a success probability.

    The set of p with ``|successes - trials p| <= z sqrt(trials p (1 - p))``. Its coverage is near ``level`` on average
    over p and for some p below it: for 0.95, down to 0.83 near p = 0.18 / trials (and 1 minus that), and to 0.91 where
    one success and one failure or more are expected. :func:`exact_binomial` never falls below, and is wider.

    Assumptions: the trials are independent. Of greedy answers to problems drawn from a population, p is the share of
    that population answered right. Neither interval shows how the answers would change with the prompt's wording or
    with another seed of training.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", JASA 1927.

    Args:
        successes: in ``[0, trials]``.
        trials: independent trials with one common probability, at least 1.
        level: nominal coverage, in (0, 1).

    Raises:
        InputError: the counts are impossible, or the level is not in (0, 1).
    """
    _check(successes, trials, level)
    from scipy.special import ndtri

    z2 = float(ndtri((1 + level) / 2)) ** 2
    centre = (successes + z2 / 2) / (trials + z2)
    half = math.sqrt(z2 * (successes * (trials - successes) / trials + z2 / 4)) / (trials + z2)
    low = max(0.0, centre - half) if successes else 0.0
    high = min(1.0, centre + half) if successes < trials else 1.0
    return low, high


def _check(successes: int, trials: int, level: float) -> None:
    if trials < 1 or not 0 <= successes <= trials:
        raise InputError(f"{successes} successes in {trials} trials: need 0 <= successes <= trials and trials >= 1")
    check_level(level)


def check_level(level: float) -> None:
    """Raise InputError when a coverage is not in (0, 1)."""
    if not 0 < level < 1:
        raise InputError(f"level = {level}: a coverage lies between 0 and 1, both excluded; 0.95 is usual")
