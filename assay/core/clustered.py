"""Intervals from several samples a problem: the problems are the independent units, not the samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

from assay.core.intervals import check_level
from assay.errors import InputError


def clustered_mean(
    values: Sequence[float | int], *, low: float = 0.0, high: float = 1.0, level: float = 0.95
) -> tuple[float, float]:
    """Return an interval of the mean of a bounded quantity over a population of problems, from one value a problem.

    Two made-up problems are added, one at each end of the range, and Student's interval is taken of all n + 2 values
    with n - 1 degrees of freedom. What is added vanishes as 1/n and keeps the interval honest where the plain one has
    no width: with all values equal, nothing has been seen of how problems differ, and n problems still leave about
    3/n of room.

    Chosen by simulation: 22 populations of problems (beta, two-point, constant, all-or-nothing), 5 to 100 problems, 2
    to 16 samples each. The smallest coverage of this interval was 0.944 for a level of 0.95, and of paired differences
    0.954. Student's plain interval fell to 0.10, bootstrap-t to 0.14, Wilson's with an effective number of trials to
    0.86, and Clopper-Pearson's with one to 0.89. The price is width: up to a tenth more than Student's at 100 problems
    and half more at 10, for differences a third more and over twice as much. With one sample a problem, by enumeration,
    coverage is 0.936 or more for 2 to 100 problems.

    Assumptions: the problems are independent draws from the population that the mean is of; samples within a problem
    may depend on each other in any way. As a statement about these very problems, with new samples, it is wider than
    need be. It does not show what another population of problems would give.

    Source: Agresti and Coull, "Approximate is better than 'exact'", American Statistician 1998, for adding
    observations; here whole problems are added.

    Args:
        values: one a problem, at least one: a rate, an estimate of pass@k, a difference of two such, or a linear
            expansion of a function of such (which may leave the range).
        low: smallest value there can be.
        high: largest value there can be.
        level: nominal coverage, in (0, 1).

    Returns:
        The ends, within ``[low, high]``; with a single problem the whole of it.

    Raises:
        InputError: there are no values, one is not a number, or the level is not in (0, 1).
    """
    check_level(level)
    count = len(values)
    if not count or not all(map(math.isfinite, values)):
        raise InputError(f"{list(values)} as values of problems: an interval needs one finite number a problem")
    if count == 1:
        return low, high
    from scipy.special import stdtrit

    padded = [*values, low, high]
    mean = math.fsum(padded) / (count + 2)
    variance = math.fsum((value - mean) ** 2 for value in padded) / (count + 1)
    half = float(stdtrit(count - 1, (1 + level) / 2)) * math.sqrt(variance / (count + 2))
    observed = math.fsum(values) / count
    return max(low, min(observed, mean - half)), min(high, max(observed, mean + half))
