"""The settings of OpenRLHF 0.11.2 that reach a gradient: its command line's names and defaults, and when it reads
them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Literal

from assay.audit.adapters.installed import Option, Settings
from assay.audit.check import TOLERANCE

ESTIMATORS = ("dr_grpo", "flash_reinforce", "gae", "group_norm", "reinforce", "reinforce_baseline", "rloo")
NORMALISED = ("gae", "reinforce", "reinforce_baseline")
"""Estimators whose advantages OpenRLHF then normalises over all tokens of a batch."""
SINGLE = 1e-6
"""Relative tolerance where OpenRLHF computes a KL in float32, whose rounding is 6e-8."""
NORMALISED_SINGLE = 1e-4
"""Relative tolerance where OpenRLHF also divides by a deviation taken in float32: groups of close rewards magnify
its rounding."""


def _if(name: str, *values: object) -> Callable[[Settings], bool]:
    return lambda settings: settings[name] in values


def _unless(name: str, value: object) -> Callable[[Settings], bool]:
    return lambda settings: settings[name] != value


def _correction(kind: object, default: object) -> Option:
    level = "algo.advantage.is_correction_level"
    return Option(kind, default, level, _unless(level, "off"))


OPTIONS: dict[str, Option] = {
    "actor.eps_clip": Option(
        float, 0.2, "actor.eps_clip_low_high=none, which comes first", _if("actor.eps_clip_low_high", None)
    ),
    "actor.eps_clip_low_high": Option(tuple[float, float] | None, None),
    "actor.dual_clip": Option(float | None, None),
    "actor.loss_agg_mode": Option(
        Literal["token-mean", "seq-mean-token-mean"],
        "token-mean",
        "actor.policy_loss_type=ppo: gspo is averaged by sequence",
        _if("actor.policy_loss_type", "ppo"),
    ),
    "actor.policy_loss_type": Option(Literal["ppo", "gspo"], "ppo"),
    "actor.entropy_coef": Option(float | None, None),
    "algo.advantage.gamma": Option(
        float, 1.0, "the estimator gae or reinforce", _if("algo.advantage.estimator", "gae", "reinforce")
    ),
    "algo.advantage.lambd": Option(float, 1.0, "the estimator gae", _if("algo.advantage.estimator", "gae")),
    "algo.advantage.no_std_norm": Option(
        bool, False, f"one of the estimators {', '.join(NORMALISED)}", _if("algo.advantage.estimator", *NORMALISED)
    ),
    "algo.advantage.is_correction_level": Option(Literal["off", "token", "seq"], "off"),
    "algo.advantage.is_correction_mode": _correction(Literal["mask", "clip"], "mask"),
    "algo.advantage.is_correction_gating": _correction(Literal["ratio", "binary_kl", "tv"], "ratio"),
    "algo.advantage.is_correction_threshold": _correction(tuple[float, float], (0.5, 5.0)),
    "algo.kl.init_coef": Option(
        float,
        0.01,
        "an estimator or algo.kl.use_loss=true",
        lambda settings: settings["algo.advantage.estimator"] is not None or settings["algo.kl.use_loss"],
    ),
    "algo.kl.estimator": Option(
        Literal["k1", "k2", "k3"],
        "k1",
        "a positive algo.kl.init_coef, and an estimator or algo.kl.use_loss=true",
        lambda settings: kl_in_reward(settings) or kl_in_loss(settings),
    ),
    "algo.kl.use_loss": Option(bool, False, "a positive algo.kl.init_coef", lambda settings: kl_in_loss(settings)),
    "algo.kl.unbiased_gradient": Option(bool, False, "algo.kl.use_loss=true", _if("algo.kl.use_loss", True)),
    "reward.clip_range": Option(
        tuple[float, float], (-10.0, 10.0), "an estimator", _unless("algo.advantage.estimator", None)
    ),
}
"""Two numbers are written ``0.2,0.28``."""


def kl_in_reward(settings: Settings) -> bool:
    """Return whether the reward holds a KL penalty."""
    penalised = settings["algo.kl.init_coef"] > 0 and not settings["algo.kl.use_loss"]
    return penalised and settings["algo.advantage.estimator"] is not None


def kl_in_loss(settings: Settings) -> bool:
    """Return whether the loss holds a KL term."""
    return bool(settings["algo.kl.use_loss"]) and settings["algo.kl.init_coef"] > 0


def objective(settings: Settings) -> str:
    """Return what a configuration is said to ascend.

    A KL in the reward is meant as that of the whole response; one in the loss is a term of every token, and is read as
    the KL at the states visited.
    """
    text, coefficient = "reward", settings["algo.kl.init_coef"]
    text += f" - {coefficient:g}*kl" if kl_in_reward(settings) else ""
    text += f" - {coefficient:g}*frozen_kl" if kl_in_loss(settings) else ""
    bonus = settings["actor.entropy_coef"]
    return text + (f" + {bonus:g}*frozen_entropy" if bonus else "")


def tolerance(settings: Settings) -> tuple[float, str]:
    """Return the relative tolerance of a configuration, and why it is that."""
    if settings["algo.advantage.estimator"] in NORMALISED:
        return NORMALISED_SINGLE, "the advantages' mean and variance over a batch's tokens are float32"
    if kl_in_reward(settings):
        return SINGLE, "compute_approx_kl is float32, and compute_reward takes its type for the reward too"
    if kl_in_loss(settings):
        return SINGLE, "compute_approx_kl is float32"
    return TOLERANCE, "OpenRLHF's code is executed on float64 tensors"


def parsed(settings: Settings) -> SimpleNamespace:
    """Return OpenRLHF's parsed command line, a namespace of namespaces, with what its methods read."""
    args = SimpleNamespace(
        rollout=SimpleNamespace(n_samples_per_prompt=None),
        train=SimpleNamespace(dynamic_batch_enable=False),
        reward=SimpleNamespace(overlong_buffer_len=None, stop_properly_penalty_coef=None),
    )
    for name, value in settings.items():
        *parts, last = name.split(".")
        place = args
        for part in parts:
            place = vars(place).setdefault(part, SimpleNamespace())
        setattr(place, last, value)
    return args
