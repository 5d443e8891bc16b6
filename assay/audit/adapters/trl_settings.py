"""Which release of TRL is audited, and its configuration from ``--set`` pairs: TRL's own names and defaults, and when
TRL reads them."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, Literal

from assay.audit.adapters.installed import Option, Settings, quiet_import, settings_in_force
from assay.audit.check import SubjectError
from assay.errors import ConfigError

SUPPORTED = "1.16"
REMEDY = "pip install trl==1.16.0"
LossType = Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo"]
Mode = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
FROM_TRL = object()
"""In place of a type or a default: what TRL's configuration declares."""


def _if(name: str, *values: object) -> Callable[[Settings], bool]:
    return lambda settings: settings[name] in values


def _loss_type(*names: str) -> Option:
    return Option(FROM_TRL, FROM_TRL, f"loss_type {' or '.join(names)}", _if("loss_type", *names))


def _of(kind: object) -> Option:
    return Option(kind, FROM_TRL)


ALWAYS = Option(FROM_TRL, FROM_TRL)
CORRECTED = Option(
    FROM_TRL,
    FROM_TRL,
    "use_vllm=true and vllm_importance_sampling_correction=true",
    lambda settings: settings["use_vllm"] and settings["vllm_importance_sampling_correction"],
)
SHARED = {
    "beta": ALWAYS,
    "gradient_accumulation_steps": ALWAYS,
    "mask_truncated_completions": ALWAYS,
    "steps_per_generation": ALWAYS,
}
OPTIONS = {
    "GRPO": SHARED
    | {
        "delta": _loss_type(*CLIPPED),
        "entropy_coef": ALWAYS,
        "epsilon": Option(
            FROM_TRL,
            FROM_TRL,
            f"loss_type {' or '.join(CLIPPED)}, or cispo without epsilon_high",
            lambda settings: (
                settings["loss_type"] in CLIPPED
                or (settings["loss_type"] == "cispo" and settings["epsilon_high"] is None)
            ),
        ),
        "epsilon_high": _loss_type(*CLIPPED, "cispo"),
        "importance_sampling_level": _of(Literal["token", "sequence"]),
        "loss_type": _of(LossType),
        "max_completion_length": _loss_type("dr_grpo"),
        "multi_objective_aggregation": _of(Literal["sum_then_normalize", "normalize_then_sum"]),
        "num_iterations": ALWAYS,
        "off_policy_mask_threshold": ALWAYS,
        "sapo_temperature_neg": _loss_type("sapo"),
        "sapo_temperature_pos": _loss_type("sapo"),
        "scale_rewards": Option(
            Literal["group", "batch"] | None,
            FROM_TRL,
            "multi_objective_aggregation=sum_then_normalize",
            _if("multi_objective_aggregation", "sum_then_normalize"),
        ),
        "top_entropy_quantile": ALWAYS,
        "use_bias_correction_kl": Option(FROM_TRL, FROM_TRL, "a beta", lambda settings: settings["beta"] != 0),
        "use_vllm": ALWAYS,
        "vespo_k_neg": _loss_type("vespo"),
        "vespo_k_pos": _loss_type("vespo"),
        "vespo_lambda_neg": _loss_type("vespo"),
        "vespo_lambda_pos": _loss_type("vespo"),
        "vllm_importance_sampling_clip_max": CORRECTED,
        "vllm_importance_sampling_clip_min": CORRECTED,
        "vllm_importance_sampling_correction": Option(FROM_TRL, FROM_TRL, "use_vllm=true", _if("use_vllm", True)),
        "vllm_importance_sampling_mode": dataclasses.replace(CORRECTED, kind=Mode),
    },
    "RLOO": SHARED
    | {"epsilon": ALWAYS, "epsilon_high": ALWAYS, "normalize_advantages": ALWAYS, "reward_clip_range": ALWAYS},
}
"""What can be set for each trainer; everything else in its configuration reaches no gradient here."""


def trl_versions() -> dict[str, str]:
    """Return the versions of the packages whose code runs.

    Raises:
        SubjectError: TRL is missing, or of a release that this adapter was not written for.
    """
    try:
        found = importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError:
        raise SubjectError(f"trl is not installed; this adapter needs {SUPPORTED}.x: {REMEDY}") from None
    if found.split(".")[:2] != SUPPORTED.split("."):
        raise SubjectError(f"trl {found} is installed; this adapter was written for {SUPPORTED}.x: {REMEDY}")
    return {name: importlib.metadata.version(name) for name in ("trl", "transformers", "torch")}


def trl_config(trainer: str, pairs: Mapping[str, str], **fixed: object) -> Any:
    """Return TRL's own configuration, with TRL's own defaults, validated by TRL itself.

    Args:
        trainer: ``"GRPO"`` or ``"RLOO"``.
        pairs: from ``--set``.
        fixed: fields that the adapter decides.

    Raises:
        ConfigError: a setting is unknown or malformed, TRL would not read it, or TRL refuses it.
        SubjectError: TRL is missing or of another release.
    """
    subject = f"trl.{trainer.lower()} {trl_versions()['trl']}"
    if "num_generations" in pairs:
        raise ConfigError(f"{subject}, --set num_generations: the group size is the audit's own; give it --group-size")
    made = trl_class(trainer, "Config")
    settings = settings_in_force(subject, pairs, _options(trainer, made), {})
    given = {name: settings[name] for name in pairs}
    if given.get("scale_rewards", "group") is None:
        given["scale_rewards"] = "none"  # TRL's word for it; in --set, none is no value
    plain = {"output_dir": tempfile.gettempdir(), "use_cpu": True, "bf16": False, "report_to": "none"}
    try:
        with quiet_import("trl", REMEDY):
            return made(**{**plain, **fixed, **given})
    except SubjectError as error:
        raise ConfigError(f"{subject}: TRL refuses these settings: {error.__cause__}") from error


def trl_class(trainer: str, kind: str) -> Any:
    """Return TRL's class, such as ``GRPOTrainer``."""
    with quiet_import("trl", REMEDY):
        module = importlib.import_module(f"trl.trainer.{trainer.lower()}_{kind.lower()}")
        return getattr(module, f"{trainer}{kind}")


def in_force(trainer: str, config: Any) -> dict[str, object]:
    """Return every setting that could have been given, with its value."""
    return {name: getattr(config, name) for name in OPTIONS[trainer]}


def objective(trainer: str, config: Any) -> str:
    """Return what a configuration is said to ascend.

    RLOO takes the KL of the whole response out of the reward. GRPO's is a term of every token, and is read as the KL at
    the states visited, as its entropy bonus is.
    """
    text = "reward"
    if config.beta:
        text += f" - {config.beta:g}*{'kl' if trainer == 'RLOO' else 'frozen_kl'}"
    if getattr(config, "entropy_coef", 0.0):
        text += f" + {config.entropy_coef:g}*frozen_entropy"
    return text


def _options(trainer: str, config_class: Any) -> dict[str, Option]:
    """Fill in types and defaults from TRL's configuration."""
    declared = {entry.name: entry for entry in dataclasses.fields(config_class)}
    made = {}
    for name, option in OPTIONS[trainer].items():
        kind = declared[name].type if option.kind is FROM_TRL else option.kind
        made[name] = dataclasses.replace(option, kind=kind, default=declared[name].default)
    return made
