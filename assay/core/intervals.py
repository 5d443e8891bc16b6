"""Confidence intervals that are exact, not asymptotic."""

from __future__ import annotations

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
        InputError: the counts are impossible.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise InputError(f"{successes} successes in {trials} trials: need 0 <= successes <= trials and trials >= 1")
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = betaincinv(successes, trials - successes + 1, tail) if successes else 0.0
    high = betaincinv(successes + 1, trials - successes, 1 - tail) if successes < trials else 1.0
    return float(low), float(high)
