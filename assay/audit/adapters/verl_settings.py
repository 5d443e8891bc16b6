"""The settings of verl 0.9.1 that reach a gradient: verl's own names and defaults, and when verl reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from assay.audit.adapters.installed import Option, Settings

ESTIMATORS = (
    "gae",
    "gdpo",
    "gpg",
    "grpo",
    "grpo_passk",
    "grpo_vectorized",
    "opo",
    "optimal_token_baseline",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "rloo",
    "rloo_vectorized",
    "tir_optimal_token_baseline",
)
LossMode = Literal[
    "vanilla",
    "bypass_mode",
    "cispo",
    "clip_cov",
    "dppo_kl",
    "dppo_tv",
    "dro",
    "geo_mean",
    "gpg",
    "gspo",
    "kl_cov",
    "sapo",
]
Aggregation = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
Penalty = Literal[
    "kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "kl+", "k1+", "abs+", "mse+", "k2+", "low_var_kl+", "k3+"
]
CLIPPED = ("vanilla", "gspo", "cispo", "clip_cov", "geo_mean", "dppo_tv", "dppo_kl", "bypass_mode")
"""Loss modes that read the clip range; the two of DPPO read it as a bound on a divergence."""
DUAL_CLIPPED = ("vanilla", "dppo_tv", "dppo_kl", "bypass_mode")


def _if(name: str, *values: object) -> Callable[[Settings], bool]:
    return lambda settings: settings[name] in values


def _mode(kind: object, default: object, *modes: str) -> Option:
    return Option(kind, default, f"loss_mode {' or '.join(modes)}", _if("loss_mode", *modes))


def _estimator(kind: object, default: object, *names: str) -> Option:
    return Option(kind, default, f"the estimator {' or '.join(names)}", _if("adv_estimator", *names))


OPTIONS: dict[str, Option] = {
    "gamma": _estimator(float, 1.0, "gae", "reinforce_plus_plus"),
    "lam": _estimator(float, 1.0, "gae"),
    "norm_adv_by_std_in_grpo": _estimator(bool, True, "grpo", "grpo_passk"),
    "use_kl_in_reward": Option(bool, False, "an estimator", lambda settings: settings["adv_estimator"] is not None),
    "kl_penalty": Option(Penalty, "kl", "use_kl_in_reward=true", _if("use_kl_in_reward", True)),
    "kl_coef": Option(float, 0.001, "use_kl_in_reward=true", _if("use_kl_in_reward", True)),
    "loss_mode": Option(LossMode, "vanilla"),
    "loss_agg_mode": Option(
        Aggregation,
        "token-mean",
        "a loss_mode other than sapo and geo_mean, use_kl_loss=true or an entropy_coeff",
        lambda settings: (
            settings["loss_mode"] not in ("sapo", "geo_mean") or settings["use_kl_loss"] or settings["entropy_coeff"]
        ),
    ),
    "loss_scale_factor": Option(
        float | None, None, "loss_agg_mode=seq-mean-token-sum-norm", _if("loss_agg_mode", "seq-mean-token-sum-norm")
    ),
    "clip_ratio": Option(
        float,
        0.2,
        "clip_ratio_low=none or clip_ratio_high=none, which are 0.2 by default and come first",
        lambda settings: (
            settings["loss_mode"] in CLIPPED and None in (settings["clip_ratio_low"], settings["clip_ratio_high"])
        ),
    ),
    "clip_ratio_low": _mode(float | None, 0.2, *CLIPPED),
    "clip_ratio_high": _mode(float | None, 0.2, *CLIPPED),
    "clip_ratio_c": _mode(float, 3.0, *DUAL_CLIPPED),
    "tau_pos": _mode(float, 1.0, "sapo"),
    "tau_neg": _mode(float, 1.05, "sapo"),
    "clip_cov_ratio": _mode(float, 0.0002, "clip_cov"),
    "clip_cov_lb": _mode(float, 1.0, "clip_cov"),
    "clip_cov_ub": _mode(float, 5.0, "clip_cov"),
    "kl_cov_ratio": _mode(float, 0.0002, "kl_cov"),
    "ppo_kl_coef": _mode(float, 0.1, "kl_cov"),
    "dro_beta": _mode(float | None, None, "dro"),
    "use_kl_loss": Option(bool, False),
    "kl_loss_type": Option(Penalty, "low_var_kl", "use_kl_loss=true", _if("use_kl_loss", True)),
    "kl_loss_coef": Option(float, 0.001, "use_kl_loss=true", _if("use_kl_loss", True)),
    "entropy_coeff": Option(float, 0.0),
    "rollout_is": Option(Literal["token", "sequence"] | None, None),
    "rollout_is_threshold": Option(float | str, 2.0, "rollout_is", lambda settings: settings["rollout_is"] is not None),
    "rollout_is_batch_normalize": Option(
        bool, False, "rollout_is", lambda settings: settings["rollout_is"] is not None
    ),
    "rollout_rs": Option(str | None, None),
    "rollout_rs_threshold": Option(
        float | str | None, None, "rollout_rs", lambda settings: settings["rollout_rs"] is not None
    ),
    "loss_type": _mode(Literal["ppo_clip", "reinforce"], "ppo_clip", "bypass_mode"),
}
"""``clip_ratio_low`` and ``clip_ratio_high`` may be ``none``, as verl's code allows. ``rollout_*`` and ``loss_type``
are verl's ``algorithm.rollout_correction``, with the defaults of its YAML."""
ACTOR = (
    "clip_ratio",
    "clip_ratio_low",
    "clip_ratio_high",
    "clip_ratio_c",
    "loss_agg_mode",
    "loss_scale_factor",
    "entropy_coeff",
    "tau_pos",
    "tau_neg",
    "use_kl_loss",
    "kl_loss_coef",
    "kl_loss_type",
)
"""Fields of verl's ``ActorConfig``."""
POLICY_LOSS = (
    "loss_mode",
    "clip_cov_ratio",
    "clip_cov_lb",
    "clip_cov_ub",
    "kl_cov_ratio",
    "ppo_kl_coef",
    "dro_beta",
)
"""Fields of verl's ``PolicyLossConfig``."""
ALGORITHM = ("gamma", "lam", "norm_adv_by_std_in_grpo", "use_kl_in_reward", "kl_penalty")
"""Fields of verl's ``AlgoConfig``."""
CORRECTION = (
    "rollout_is",
    "rollout_is_threshold",
    "rollout_is_batch_normalize",
    "rollout_rs",
    "rollout_rs_threshold",
    "loss_type",
)
"""Fields of verl's ``RolloutCorrectionConfig``."""


def objective(settings: Settings) -> str:
    """Return what a configuration is said to ascend.

    A KL in the reward is meant as that of the whole response; one in the loss is a term of every token, and is read as
    the KL at the states visited.
    """
    text = "reward"
    if settings["use_kl_in_reward"]:
        text += f" - {settings['kl_coef']:g}*kl"
    if settings["use_kl_loss"]:
        text += f" - {settings['kl_loss_coef']:g}*frozen_kl"
    if settings["entropy_coeff"]:
        text += f" + {settings['entropy_coeff']:g}*frozen_entropy"
    return text
