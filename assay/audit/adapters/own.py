"""Our own algorithms as subjects of the audit: ``assay audit assay.grpo --set beta=0.03 --set kl=reward``."""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Float, Int
from torch import Tensor

import assay
from assay.audit.call import Loss
from assay.audit.subjects import Maker, Subject
from assay.core.algorithms import ALGORITHMS
from assay.core.estimands import estimand, objective
from assay.core.estimator import Algorithm, Rows, loss, prepare
from assay.core.settings import Settings
from assay.errors import ConfigError

GROUP_SIZE = 4
"""Responses in a group that the declared objective is stated for, where the settings do not say."""


def subject(algorithm: Algorithm, given: Mapping[str, str]) -> Subject:
    """Return an algorithm under some settings as a subject.

    ``group_size`` is accepted beside the algorithm's own settings. It changes the declared objective alone: a baseline
    with its own sample in it ascends (G-1)/G of the reward.

    Raises:
        ConfigError: a setting is unknown, out of range, without effect, or makes no sense for this algorithm.
    """
    size = _group_size(given.get("group_size", str(GROUP_SIZE)))
    settings = algorithm.settle({key: value for key, value in given.items() if key != "group_size"})
    ascends = objective(algorithm, settings, group_size=size)
    return Subject(
        name=f"assay.{algorithm.name}",
        loss=_loss(algorithm, settings),
        objective=ascends or "reward",
        settings={name: getattr(settings, name) for name in algorithm.reads} | {"group_size": size},
        versions={"assay": assay.__version__},
        reaches=f"{estimand(algorithm, settings)} ({algorithm.source})",
        misses=""
        if ascends
        else "no sum of known objectives has this update as its gradient; it is compared with reward",
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


def _group_size(text: str) -> int:
    if not text.isdigit() or int(text) < 2:
        raise ConfigError(f"group_size = {text}: expected a whole number of at least 2")
    return int(text)


def _maker(algorithm: Algorithm) -> Maker:
    return lambda given: subject(algorithm, given)


SUBJECTS: dict[str, Maker] = {f"assay.{name}": _maker(algorithm) for name, algorithm in ALGORITHMS.items()}
"""What makes each subject, by the name that a user types."""
