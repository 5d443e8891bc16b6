"""The way of a batch through verl's default trainer (``trainer.use_v1``), from rewards to the actor's loss.

The functions are verl's; the lines between them are repeated here, because the modules that hold those lines import a
serving stack.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from assay.audit.adapters.installed import Settings
from assay.audit.adapters.verl_settings import CORRECTION

CUT = ("logp", "logp_old", "logp_ref", "logp_sampler", "value")
NAMES = (*CUT, "reward", "adv", "mask", "group", "logits_old")
"""What a loss of verl's asks for."""


@dataclass(frozen=True)
class Verl:
    """verl's own objects, configured.

    Attributes:
        core: its module of advantages, policy losses and penalties.
        losses: its module of actor losses.
        correction: its module of importance weights for a sampler that differs.
        functional: its tensor functions.
        tensordicts: its helpers for batches.
        actor: its actor's configuration.
        algorithm: its algorithm's configuration.
    """

    core: ModuleType
    losses: ModuleType
    correction: ModuleType
    functional: ModuleType
    tensordicts: ModuleType
    actor: Any
    algorithm: Any


@dataclass(frozen=True)
class Rows:
    """A batch of responses, with zeros where one is over: verl pads with them.

    Attributes:
        logp: of the trained policy; carries the gradient.
        logp_old: of the policy when the update began.
        logp_ref: of the reference.
        logp_sampler: of what drew the responses.
        value: a critic's say before each token.
        reward: of each response.
        mask: 1.0 where a token was sampled.
        group: which group each row belongs to.
        logits_old: of the policy when the update began.
        present: where a response is not over.
    """

    logp: Float[Tensor, "B T"]
    logp_old: Float[Tensor, "B T"]
    logp_ref: Float[Tensor, "B T"]
    logp_sampler: Float[Tensor, "B T"]
    value: Float[Tensor, "B T"]
    reward: Float[Tensor, " B"]
    mask: Float[Tensor, "B T"]
    group: Int[Tensor, " B"]
    logits_old: Float[Tensor, "B T V"]
    present: Bool[Tensor, "B T"]


def rows_of(given: dict[str, Tensor]) -> Rows:
    """Return the batch that a loss was given, a response's last sampled token being its end."""
    present = given["mask"].flip(1).cumsum(1).flip(1) > 0
    cut = {name: given[name].masked_fill(~present, 0.0) for name in CUT}
    whole = {name: given[name] for name in ("reward", "mask", "group", "logits_old")}
    return Rows(**cut, **whole, present=present)


def batch_loss(
    library: Verl, settings: Settings, rows: Rows, adv: Float[Tensor, " B"], entropy: Float[Tensor, "B T"] | None
) -> Float[Tensor, ""]:
    """Return verl's loss of a batch.

    Args:
        library: verl.
        settings: every setting in force, ``adv_estimator`` among them.
        rows: the batch.
        adv: the audit's advantages, for a subject without an estimator.
        entropy: of the policy before each token, where there is a bonus for it.
    """
    bypass = settings["loss_mode"] == "bypass_mode"  # the trainer puts the sampler's log-probabilities in place of old
    logp_old = rows.logp_sampler if bypass else rows.logp_old
    mask, weights = (rows.mask, None) if bypass else _corrected(library, settings, rows)
    if settings["adv_estimator"] is None:
        made = adv[:, None] * mask
    else:
        rewards = _token_rewards(library, settings, rows, logp_old)
        made = _advantages(library, settings, rows, rewards, mask, logp_old, weights)
    return _actor_loss(library, rows, logp_old, made, mask, weights, entropy)


def _corrected(
    library: Verl, settings: Settings, rows: Rows
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"] | None]:
    """Return the mask without what rejection sampling drops, and the weights for a sampler that differs."""
    if settings["rollout_is"] is None and settings["rollout_rs"] is None:
        return rows.mask, None
    given = {name: settings[name] for name in CORRECTION if name != "loss_type"}
    weights, mask, _ = library.correction.compute_rollout_correction_and_rejection_mask(
        rows.logp_old, rows.logp_sampler, rows.mask, **given
    )
    return mask, None if weights is None else weights.batch["rollout_is_weights"]


def _token_rewards(
    library: Verl, settings: Settings, rows: Rows, logp_old: Float[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Return the reward at each response's last token, less the KL penalty where it is put there."""
    last = rows.present.sum(1, keepdim=True) - 1
    rewards = torch.zeros_like(rows.mask).scatter(1, last, rows.reward[:, None])
    if not settings["use_kl_in_reward"]:
        return rewards
    penalty: Tensor = library.core.kl_penalty(logp_old, rows.logp_ref, settings["kl_penalty"])
    return rewards - float(settings["kl_coef"]) * penalty * rows.mask


def _advantages(
    library: Verl,
    settings: Settings,
    rows: Rows,
    rewards: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    logp_old: Float[Tensor, "B T"],
    weights: Float[Tensor, "B T"] | None,
) -> Float[Tensor, "B T"]:
    """Call the estimator with what verl's trainer hands it, and no more."""
    name = settings["adv_estimator"]
    given: dict[str, Any] = {"token_level_rewards": rewards, "response_mask": mask}
    if name == "gae":
        given |= {"values": rows.value, "gamma": settings["gamma"], "lam": settings["lam"]}
    else:
        given["index"] = np.array([str(number) for number in rows.group.tolist()], dtype=object)
    if name == "grpo":
        given["norm_adv_by_std_in_grpo"] = settings["norm_adv_by_std_in_grpo"]
    elif name not in ("gae", "gdpo"):
        given["config"] = library.algorithm
    if name == "remax":
        given["reward_baselines"] = rows.value[:, 0]
    if name == "grpo_vectorized":
        given["token_level_rewards"] = rewards.float()  # as verl has them; its statistics are float32 whatever comes
    if name.endswith("optimal_token_baseline"):
        squares = library.functional.calculate_sum_pi_squared_from_logits(rows.logits_old)
        given |= {"old_log_probs": logp_old, "sum_pi_squared": squares, "rollout_is_weights": weights}
    made: Tensor = library.core.get_adv_estimator_fn(name)(**given)[0]
    return made


def _actor_loss(
    library: Verl,
    rows: Rows,
    logp_old: Float[Tensor, "B T"],
    adv: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    weights: Float[Tensor, "B T"] | None,
    entropy: Float[Tensor, "B T"] | None,
) -> Float[Tensor, ""]:
    """Call verl's ``ppo_loss`` on sequences of one prompt token and the response, as wide as the longest."""
    count, width = len(rows.mask), int(rows.present.sum(1).max())
    sequence = pad(rows.present, (1, 0), value=True)

    def predicted(tensor: Float[Tensor, "B T"]) -> Float[Tensor, " N"]:
        """Lay out what a model says at every token of the sequences; nothing is asked of the last."""
        return pad(tensor, (0, 1))[sequence]

    fields = {
        "responses": rows.mask,
        "response_mask": mask,
        "old_log_probs": logp_old,
        "advantages": adv,
        "ref_log_prob": rows.logp_ref,
    }
    fields |= {} if weights is None else {"rollout_is_weights": weights}
    cut = {name: tensor[:, :width] for name, tensor in fields.items()}
    cut |= {"prompts": torch.zeros(count, 1), "attention_mask": sequence[:, : width + 1]}
    data = import_module("tensordict").TensorDict(cut, batch_size=count)
    tokens = int(rows.mask.sum())
    library.tensordicts.assign_non_tensor(data, dp_size=1, batch_num_tokens=tokens, global_batch_size=count)
    said = {"log_probs": predicted(rows.logp)} | ({} if entropy is None else {"entropy": predicted(entropy)})
    made: Tensor = library.losses.ppo_loss(library.actor, said, data)[0]
    return made
