"""How far the sampler's log-probabilities are from the trainer's, on the tokens of one batch.

A sampler that computes in other kernels, another precision or with older weights draws from another distribution than
the one that is scored. The importance ratio of a token is ``exp(logp - logp_sampler)``, that of a response the product
over its tokens. Both are reported as they are, before anything is clipped or left out: a cap hides the very ratios that
say that the two have parted.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.core.kl import k3
from assay.core.ratios import log_ratio

_DIFFERENCE = "sampling/sampling_logp_difference"
_RATIO = "sampling/importance_sampling_ratio"


@dataclass(frozen=True)
class Spread:
    """The smallest, the mean and the largest of some numbers; all 0 where there are none.

    Attributes:
        min: the smallest.
        mean: their mean.
        max: the largest.
    """

    min: float
    mean: float
    max: float


@dataclass(frozen=True)
class Gap:
    """What sets the sampler of a batch apart from the policy that is trained.

    A token whose sampler gave no log-probability (NaN) is in ``unscored`` and in no other figure: with a ratio of 1 it
    would hide a gap, and as NaN it would hide all the others.

    Attributes:
        difference_mean: mean over tokens of ``|logp - logp_sampler|``, in nats.
        difference_max: the largest of them.
        token_ratio: of ``exp(logp - logp_sampler)`` over tokens.
        sequence_ratio: of the product of each response's token ratios, over responses with a token that counts.
        kl: mean over tokens of ``r - 1 - log r``, in nats: k3, which estimates KL(sampler ‖ policy) per token without
            bias and is never negative.
        effective_sample_size: ``(Σ w)² / (n Σ w²)`` of the n sequence ratios, in (0, 1]: 1 where all are equal.
        unscored: how many tokens the sampler gave no log-probability for.
    """

    difference_mean: float
    difference_max: float
    token_ratio: Spread
    sequence_ratio: Spread
    kl: float
    effective_sample_size: float
    unscored: int

    def record(self) -> dict[str, float | int]:
        """Return the figures for a step's record, under TRL's names where the meaning is TRL's.

        TRL's ratios are those of its mode, here of tokens, and after its cap; these are before any.
        """
        return {
            f"{_DIFFERENCE}/mean": self.difference_mean,
            f"{_DIFFERENCE}/max": self.difference_max,
            **{f"{_RATIO}/{name}": value for name, value in asdict(self.token_ratio).items()},
            **{f"sampling/sequence_ratio/{name}": value for name, value in asdict(self.sequence_ratio).items()},
            "sampling/kl": self.kl,
            "sampling/effective_sample_size": self.effective_sample_size,
            "sampling/unscored_tokens": self.unscored,
        }


@torch.no_grad()
def gap(logp: Float[Tensor, "B T"], logp_sampler: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Gap:
    """Measure the gap between a sampler and the policy it is meant to be.

    Both log-probabilities must be over the same support: after the same temperature and the same truncation.

    Args:
        logp: of each token under the policy when it is scored, before any update.
        logp_sampler: of each token as the sampler drew it; NaN where it gave none.
        mask: the tokens that count.
    """
    scored = mask & ~logp_sampler.isnan()
    log_ratios = log_ratio(logp.double(), logp_sampler.double(), scored)
    tokens = log_ratios[scored]
    sequence = log_ratios[scored.any(1)].sum(1)
    difference = _spread(tokens.abs())
    return Gap(
        difference_mean=difference.mean,
        difference_max=difference.max,
        token_ratio=_spread(tokens.exp()),
        sequence_ratio=_spread(sequence.exp()),
        kl=_spread(k3(-tokens)).mean,
        effective_sample_size=effective_sample_size(sequence),
        unscored=int((mask & logp_sampler.isnan()).sum()),
    )


def effective_sample_size(log_weights: Float[Tensor, " B"]) -> float:
    """Return ``(Σ w)² / (n Σ w²)`` of importance weights, in (0, 1]; 1 where there are none.

    The weights are scaled by the largest, so that none overflows.

    Source: Kong, "A note on importance sampling using standardized weights", 1992.

    Args:
        log_weights: their logarithms.
    """
    if not len(log_weights):
        return 1.0
    weights = (log_weights - log_weights.max()).exp()
    return float(weights.sum().square() / (len(weights) * weights.square().sum()))


def _spread(values: Float[Tensor, " N"]) -> Spread:
    if not len(values):
        return Spread(0.0, 0.0, 0.0)
    return Spread(float(values.min()), float(values.mean()), float(values.max()))
