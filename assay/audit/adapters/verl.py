"""verl 0.9.1: an advantage estimator of its own and its actor's loss, on float64 tensors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any

from torch import Tensor

from assay.audit.adapters.installed import Settings, quiet_import, require, settings_in_force
from assay.audit.adapters.verl_batch import NAMES, Verl, batch_loss, rows_of
from assay.audit.adapters.verl_settings import (
    ACTOR,
    ALGORITHM,
    CORRECTION,
    ESTIMATORS,
    OPTIONS,
    POLICY_LOSS,
    objective,
)
from assay.audit.call import Loss, asking_for
from assay.audit.check import TOLERANCE
from assay.audit.subjects import Maker, Subject
from assay.errors import ConfigError

SUPPORTED = "0.9.1"
REMEDY = f"pip install --no-deps verl=={SUPPORTED}, beside torch, ray, tensordict, omegaconf, codetiming and orjson"
REACHES = (
    "core_algos' {advantage}kl_penalty, policy losses and agg_loss, through the actor's own ppo_loss; batches are as "
    "wide as their longest response, as they are under trainer.use_v1"
)
MISSES = (
    "the lines of ray_trainer that call these functions, repeated here; the engines' forward pass, which is float32 or "
    "less there and float64 here; micro-batches, ranks and the optimizer"
)
STAND_INS = {
    "remax": "the greedy response's reward: the critic's value of the empty prefix, a fixed number a problem, is used",
    "gdpo": "several rewards a response: there is one",
}
"""What an estimator asks for and a world does not hold."""
SINGLE = {
    "grpo_vectorized": (1e-5, "verl's group_mean_std is float32; rewards are handed over in float32, as verl has them")
}
"""Estimators that are not float64 throughout, with the tolerance that this asks for and why."""


def subject(estimator: str | None, given: Mapping[str, str]) -> Subject:
    """Make a subject from verl's own settings.

    Args:
        estimator: name of the advantage estimator; None takes the audit's advantage.
        given: from ``--set``.

    Raises:
        ConfigError: a setting is unknown or malformed, or verl refuses or does not read it.
        SubjectError: verl is missing or of another version.
    """
    name = f"verl.{estimator or 'policy_loss'}"
    settings = settings_in_force(f"{name} of verl {SUPPORTED}", given, OPTIONS, {"adv_estimator": estimator})
    versions = require("verl", SUPPORTED, REMEDY)
    tolerance, why = SINGLE.get(estimator or "", (TOLERANCE, "verl's code is executed on float64 tensors"))
    return Subject(
        name,
        _loss(_configured(name, settings), settings),
        objective=objective(settings),
        settings=settings,
        versions=versions,
        reaches=REACHES.format(advantage="advantage estimator, " if estimator else ""),
        misses="; ".join([MISSES, *filter(None, [STAND_INS.get(estimator or "")])]),
        tolerance=tolerance,
        why=why,
    )


SUBJECTS: dict[str, Maker] = {
    "verl.policy_loss": partial(subject, None),
    **{f"verl.{name}": partial(subject, name) for name in ESTIMATORS},
}


def _configured(name: str, settings: Settings) -> Verl:
    with quiet_import("verl", REMEDY):
        core, losses, correction, functional, tensordicts, trainer, workers = map(
            import_module,
            (
                "verl.trainer.ppo.core_algos",
                "verl.workers.utils.losses",
                "verl.trainer.ppo.rollout_corr_helper",
                "verl.utils.torch_functional",
                "verl.utils.tensordict_utils",
                "verl.trainer.config",
                "verl.workers.config",
            ),
        )

    def chosen(names: tuple[str, ...]) -> dict[str, Any]:
        return {name: settings[name] for name in names}

    if settings["loss_mode"] == "dro" and not (settings["dro_beta"] or 0) > 0:
        raise ConfigError(f"{name}, loss_mode=dro: verl wants a positive dro_beta, such as --set dro_beta=0.1")
    bypass = settings["loss_mode"] == "bypass_mode"
    corrected = trainer.RolloutCorrectionConfig(**chosen(CORRECTION), bypass_mode=bypass)
    policy_loss = workers.PolicyLossConfig(**chosen(POLICY_LOSS), rollout_correction=corrected)
    demanded = {"strategy": "fsdp", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1}
    actor = workers.ActorConfig(**chosen(ACTOR), **demanded, policy_loss=policy_loss)
    algorithm = trainer.AlgoConfig(**chosen(ALGORITHM))
    return Verl(core, losses, correction, functional, tensordicts, actor, algorithm)


def _loss(library: Verl, settings: Settings) -> Loss:
    def loss(given: dict[str, Tensor]) -> Tensor:
        entropy = library.functional.entropy_from_logits(given["logits"]) if "logits" in given else None
        return batch_loss(library, settings, rows_of(given), given["adv"], entropy)

    return asking_for((*NAMES, "logits") if settings["entropy_coeff"] else NAMES, loss)
