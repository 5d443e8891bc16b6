"""Pass@k of a problem from n samples of it."""

from __future__ import annotations

import math

from assay.errors import InputError


def estimate_pass_at_k(right: int, samples: int, k: int) -> float:
    """Return the unbiased estimate of the probability that at least one of k samples is right.

    ``1 - C(n - c, k) / C(n, k)`` for c right of n: the share of all subsets of k that hold a right one. Binomial
    coefficients are exact integers, so that nothing overflows and the one division is correctly rounded. Drawing k
    with replacement from the n instead is biased low: 0.68 in place of 1 for one right of 4 and k = 4.

    Assumptions: the n samples are independent draws under one setting of the sampler. The estimate is of that setting
    alone; for k = n it says only whether any sample was right. The spread over problems is
    :func:`assay.core.clustered.clustered_mean` of these values.

    Source: Chen et al., "Evaluating large language models trained on code", 2021, equation 1.

    Args:
        right: samples that were right, c.
        samples: all samples, n; those that could not be scored count as not right.
        k: tries, from 1 to n.

    Raises:
        InputError: the counts are impossible, or k exceeds the samples.
    """
    if not 0 <= right <= samples:
        raise InputError(f"{right} right of {samples} samples: need 0 <= right <= samples")
    if not 1 <= k <= samples:
        raise InputError(f"pass@{k} from {samples} samples: k must be at least 1, and needs at least k samples")
    subsets = math.comb(samples, k)
    return (subsets - math.comb(samples - right, k)) / subsets
