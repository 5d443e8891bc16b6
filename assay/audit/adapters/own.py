"""Our own algorithms as subjects of the audit: ``assay audit assay.grpo --set beta=0.03 --set kl=reward``."""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Float, Int
from torch import Tensor

from assay.audit.call import Loss
from assay.audit.subjects import Maker, Subject
from assay.core.algorithms import ALGORITHMS
from assay.core.estimands import estimand, objective
from assay.core.estimator import Algorithm, Rows, loss, prepare
from assay.core.settings import Settings


def subject(algorithm: Algorithm, given: Mapping[str, str]) -> Subject:
    """Return an algorithm under some settings as a subject.

    Its declared objective follows the group size: a baseline with its own sample in it ascends (G-1)/G of the reward.
    Where no sum of known objectives has its update as gradient, it is compared with the reward.

    Raises:
        ConfigError: a setting is unknown, out of range, without effect, or makes no sense for this algorithm.
    """
    settings = algorithm.settle(given)
    return Subject(
        name=f"assay.{algorithm.name}",
        loss=_loss(algorithm, settings),
        objective=lambda size: objective(algorithm, settings, group_size=size) or "reward",
        estimand=f"{estimand(algorithm, settings)} ({algorithm.source})",
        settings={name: getattr(settings, name) for name in algorithm.reads},
    )


def _loss(algorithm: Algorithm, settings: Settings) -> Loss:
    """Return the loss of one batch, at the narrowest boundary that the settings need."""

    def of_rows(rows: Rows) -> Tensor:
        return loss(algorithm, settings, prepare(algorithm, settings, rows))

    def from_logp(
        logp: Float[Tensor, "B T"],
        logp_old: Float[Tensor, "B T"],
        logp_ref: Float[Tensor, "B T"],
        logp_sampler: Float[Tensor, "B T"],
        mask: Float[Tensor, "B T"],
        reward: Float[Tensor, " B"],
        group: Int[Tensor, " B"],
        tokens: Int[Tensor, "B T"],
    ) -> Tensor:
        return of_rows(Rows(logp, logp_old, logp_ref, logp_sampler, mask != 0, reward, group, tokens))

    def from_logits(
        logp: Float[Tensor, "B T"],
        logp_old: Float[Tensor, "B T"],
        logp_ref: Float[Tensor, "B T"],
        logp_sampler: Float[Tensor, "B T"],
        mask: Float[Tensor, "B T"],
        reward: Float[Tensor, " B"],
        group: Int[Tensor, " B"],
        tokens: Int[Tensor, "B T"],
        logits: Float[Tensor, "B T V"],
        logits_ref: Float[Tensor, "B T V"],
    ) -> Tensor:
        return of_rows(
            Rows(logp, logp_old, logp_ref, logp_sampler, mask != 0, reward, group, tokens, logits, logits_ref)
        )

    return from_logits if algorithm.needs_logits(settings) else from_logp


def _maker(algorithm: Algorithm) -> Maker:
    return lambda given: subject(algorithm, given)


SUBJECTS: dict[str, Maker] = {f"assay.{name}": _maker(algorithm) for name, algorithm in ALGORITHMS.items()}
"""What makes each subject, by the name that a user types."""
