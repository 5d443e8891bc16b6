"""OpenRLHF 0.11.2: its experience maker's advantages and its actor's training step, on float64 tensors.

Two methods are called on objects that were never initialised: ``compute_advantages_and_returns`` turns rewards into
advantages, ``training_step`` turns those into the loss that it hands to its strategy, where it is caught. The actor is
a table of log-probabilities.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.audit.adapters.installed import Settings, quiet_import, require, settings_in_force
from assay.audit.adapters.openrlhf_settings import ESTIMATORS, OPTIONS, kl_in_reward, objective, parsed, tolerance
from assay.audit.adapters.openrlhf_stubs import PACKAGES, stubs
from assay.audit.call import Loss, asking_for
from assay.audit.check import SubjectError
from assay.audit.subjects import Maker, Subject
from assay.core.full_vocabulary import token_entropy
from assay.errors import ConfigError

SUPPORTED = "0.11.2"
REMEDY = f"pip install --no-deps openrlhf=={SUPPORTED}, beside torch, ray, transformers, peft, accelerate and datasets"
REACHES = "{advantage}ActorPPOTrainer.training_step with PolicyLoss, compute_approx_kl and aggregate_loss"
MISSES = (
    "the experience maker's model calls, with the line that puts the KL into an experience repeated here; length "
    "penalties and dynamic filtering; the entropy of the actor's logits, taken here in float64; DeepSpeed, ranks, "
    f"micro-batches and the optimizer; where {', '.join(PACKAGES)} are not installed, empty modules stand in for them "
    "during the import"
)
MASKED = ("logp", "logp_old", "logp_ref", "logp_sampler", "value")
NAMES = (*MASKED, "reward", "adv", "mask", "group")


@dataclass(frozen=True)
class OpenRLHF:
    """OpenRLHF's own objects, configured.

    Attributes:
        utils: its module of penalties.
        experience: its class of experiences.
        maker: an experience maker without models.
        trainer: an actor's trainer without an actor.
    """

    utils: ModuleType
    experience: Any
    maker: Any
    trainer: Any


@dataclass(frozen=True)
class Rows:
    """A batch of responses, with zeros where the mask is: OpenRLHF's actor multiplies by it.

    Attributes:
        logp: of the trained policy; carries the gradient.
        logp_old: of the policy when the update began.
        logp_ref: of the reference.
        logp_sampler: of what drew the responses.
        value: a critic's say before each token.
        reward: of each response.
        mask: where a token was sampled.
        group: which group each row belongs to.
    """

    logp: Float[Tensor, "B T"]
    logp_old: Float[Tensor, "B T"]
    logp_ref: Float[Tensor, "B T"]
    logp_sampler: Float[Tensor, "B T"]
    value: Float[Tensor, "B T"]
    reward: Float[Tensor, " B"]
    mask: Bool[Tensor, "B T"]
    group: Int[Tensor, " B"]


def subject(estimator: str | None, given: Mapping[str, str]) -> Subject:
    """Make a subject from OpenRLHF's own settings.

    Args:
        estimator: name of the advantage estimator; None takes the audit's advantage.
        given: from ``--set``.

    Raises:
        ConfigError: a setting is unknown or malformed, or OpenRLHF refuses or does not read it.
        SubjectError: OpenRLHF is missing or of another version.
    """
    name, fixed = f"openrlhf.{estimator or 'policy_loss'}", {"algo.advantage.estimator": estimator}
    settings = settings_in_force(f"{name} of OpenRLHF {SUPPORTED}", given, OPTIONS, fixed)
    versions = require("openrlhf", SUPPORTED, REMEDY)
    relative, why = tolerance(settings)
    advantage = "RemoteExperienceMaker.compute_advantages_and_returns, " if estimator else ""
    return Subject(
        name,
        _loss(_configured(name, settings), settings),
        objective=objective(settings),
        settings=settings,
        versions=versions,
        reaches=REACHES.format(advantage=advantage),
        misses=MISSES,
        tolerance=relative,
        why=why,
    )


SUBJECTS: dict[str, Maker] = {
    "openrlhf.policy_loss": partial(subject, None),
    **{f"openrlhf.{name}": partial(subject, name) for name in ESTIMATORS},
}


def _configured(name: str, settings: Settings) -> OpenRLHF:
    with quiet_import("openrlhf", REMEDY), stubs():
        models, utils, experience, makers, trainers = map(
            import_module,
            (
                "openrlhf.models.loss",
                "openrlhf.models.utils",
                "openrlhf.trainer.ppo_utils.experience",
                "openrlhf.trainer.ppo_utils.experience_maker",
                "openrlhf.trainer.ray.ppo_actor",
            ),
        )
    args = parsed(settings)
    maker, trainer = object.__new__(makers.RemoteExperienceMaker), object.__new__(trainers.ActorPPOTrainer)
    maker.strategy = SimpleNamespace(args=args)
    maker.advantage_estimator = settings["algo.advantage.estimator"]
    maker.kl_ctl = SimpleNamespace(value=settings["algo.kl.init_coef"])
    trainer.args, trainer.aux_loss, trainer.ema_model = args, False, None
    trainer.replay_buffer = trainer.actor_optim = None
    trainer.actor_scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
    try:
        trainer.actor_loss_fn = models.PolicyLoss(**_policy_loss(settings))
    except (ValueError, AssertionError) as error:
        raise ConfigError(f"{name}: OpenRLHF refuses these settings: {error}") from error
    return OpenRLHF(utils, experience.Experience, maker, trainer)


def _policy_loss(settings: Settings) -> dict[str, Any]:
    """Return what OpenRLHF's trainer gives its ``PolicyLoss``."""
    low, high = settings["actor.eps_clip_low_high"] or (settings["actor.eps_clip"],) * 2
    corrections = ("is_correction_level", "is_correction_mode", "is_correction_gating", "is_correction_threshold")
    return {
        "clip_eps_low": low,
        "clip_eps_high": high,
        "dual_clip": settings["actor.dual_clip"],
        "token_level_loss": settings["actor.loss_agg_mode"] == "token-mean",
        "policy_loss_type": settings["actor.policy_loss_type"],
        **{part: settings[f"algo.advantage.{part}"] for part in corrections},
    }


def _loss(library: OpenRLHF, settings: Settings) -> Loss:
    def loss(given: dict[str, Tensor]) -> Tensor:
        chosen = given["mask"] > 0
        masked = {name: given[name].masked_fill(~chosen, 0.0) for name in MASKED}
        rows = Rows(**masked, reward=given["reward"], mask=chosen, group=given["group"])
        entropy = token_entropy(given["logits"], chosen) if "logits" in given else None
        return _batch_loss(library, settings, rows, given["adv"], entropy)

    return asking_for((*NAMES, "logits") if settings["actor.entropy_coef"] else NAMES, loss)


def _batch_loss(
    library: OpenRLHF, settings: Settings, rows: Rows, adv: Float[Tensor, " B"], entropy: Float[Tensor, "B T"] | None
) -> Float[Tensor, ""]:
    """Return OpenRLHF's loss of a batch; ``adv`` is used by a subject without an estimator."""
    experience = _experience(library, settings, rows)
    if settings["algo.advantage.estimator"] is None:
        experience.advantages = adv[:, None] * rows.mask
    else:
        library.maker.strategy.args.rollout.n_samples_per_prompt = _group_size(rows.group)
        library.maker.compute_advantages_and_returns([experience])
    caught: list[Tensor] = []
    library.trainer.actor = _Actor(rows.logp, entropy)
    library.trainer.strategy = SimpleNamespace(
        ring_attn_group=None,
        backward=lambda loss, *_: caught.append(loss),
        optimizer_step=lambda *_, **__: None,
        get_grad_norm=lambda _: 0.0,
    )
    counts = {"dp_size": 1, "batch_num_tokens": rows.mask.sum(), "global_batch_size": len(rows.mask)}
    library.trainer.training_step(experience, settings["algo.kl.init_coef"], 0, counts)
    return caught[0]


class _Actor:
    """Stands in for the actor: log-probabilities and entropies of a batch's tokens."""

    def __init__(self, logp: Float[Tensor, "B T"], entropy: Float[Tensor, "B T"] | None) -> None:
        self._logp, self._entropy = logp, entropy

    def train(self) -> None:
        """Be in training mode, as always."""

    def __call__(self, *_: object, **__: object) -> tuple[Tensor, SimpleNamespace]:
        return self._logp, SimpleNamespace(entropy=self._entropy)


def _experience(library: OpenRLHF, settings: Settings, rows: Rows) -> Any:
    """Return the batch as the experience maker leaves it before advantages: its rows have places, group after
    group."""
    kl = torch.zeros_like(rows.logp_old)
    if kl_in_reward(settings):
        estimator = settings["algo.kl.estimator"]
        kl = library.utils.compute_approx_kl(rows.logp_old, rows.logp_ref, kl_estimator=estimator)
    place = torch.empty_like(rows.group)
    place[rows.group.argsort(stable=True)] = torch.arange(len(place))
    return library.experience(
        sequences=rows.mask.long(),
        action_mask=rows.mask,
        action_log_probs=rows.logp_old,
        base_action_log_probs=rows.logp_ref if settings["algo.kl.use_loss"] else None,
        rollout_log_probs=rows.logp_sampler,
        values=rows.value,
        kl=kl,
        rewards=rows.reward,
        index=place.tolist(),
    )


def _group_size(group: Int[Tensor, " B"]) -> int:
    sizes = sorted(set(Counter(group.tolist()).values()))
    if len(sizes) > 1:
        raise SubjectError(f"OpenRLHF has one n_samples_per_prompt for all prompts; here are groups of {sizes}")
    return sizes[0]
