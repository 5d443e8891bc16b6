"""Our own algorithms as subjects of the audit: ``assay audit assay.grpo --set beta=0.03 --set kl=reward``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from assay.audit.call import NAMES, Loss, asking_for
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
    names = [entry.name for entry in dataclasses.fields(Rows) if entry.name in NAMES]
    if not algorithm.needs_logits(settings):
        names = [name for name in names if not name.startswith("logits")]

    def of_batch(given: dict[str, Tensor]) -> Tensor:
        columns: dict[str, Any] = {**given, "mask": given["mask"] != 0}
        return loss(algorithm, settings, prepare(algorithm, settings, Rows(**columns)))

    return asking_for(names, of_batch)


def _maker(algorithm: Algorithm) -> Maker:
    return lambda given: subject(algorithm, given)


SUBJECTS: dict[str, Maker] = {f"assay.{name}": _maker(algorithm) for name, algorithm in ALGORITHMS.items()}
"""What makes each subject, by the name that a user types."""
