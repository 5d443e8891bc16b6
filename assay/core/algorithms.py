"""The named algorithms, with what each ascends. A recipe chooses one by name; nothing here is a default of another."""

from __future__ import annotations

from assay.core import _parts as parts
from assay.core.estimator import Algorithm
from assay.core.settings import Settings

_CLIP = ("clip_low", "clip_high")
_GRADIENT = "the gradient of {J}"
_COVERED = f"{_GRADIENT}, where the sampler can draw all that the policy can"
_LIKELIHOOD = "the gradient of the log-likelihood of what the sampler drew, weighted by the advantage"
_SURROGATE = (
    "the gradient of the surrogate Σ_t ratio_t A_t at the states that the sampler visits, without the tokens whose "
    "ratio is beyond the clip"
)
_NO_SCALAR = "the gradient of no scalar where lengths differ"
_FRACTION = "scales by the fraction of successes, which a KL inside the reward blurs; put the KL in the loss"
_NONNEGATIVE = "needs rewards of at least 0, and the overlong penalty is negative"
_RANKS = "ranks whole rewards and cannot see a KL inside them; put the KL in the loss"


def _one(size: int, settings: Settings) -> float:
    return 1.0


_TABLE = (
    Algorithm(
        "reinforce",
        parts.PLAIN,
        parts.score,
        parts.TOKEN_SUM,
        on_policy=_GRADIENT,
        off_policy="the gradient of the log-likelihood of what the sampler drew, weighted by the {R}",
        source="Williams, 1992",
        factor=_one,
        least=1,
    ),
    Algorithm(
        "rloo",
        parts.LEAVE_ONE_OUT,
        parts.score,
        parts.TOKEN_SUM,
        on_policy=_GRADIENT,
        off_policy=_LIKELIHOOD,
        source="Kool et al., 2019; Ahmadian et al., 'Back to basics', 2024",
        live=("dynamic_sampling",),
        factor=_one,
    ),
    Algorithm(
        "mean_centred",
        parts.CENTRED,
        parts.score,
        parts.TOKEN_SUM,
        on_policy="(G-1)/G times the gradient of {J}: the baseline contains its own sample",
        off_policy=f"(G-1)/G times {_LIKELIHOOD}",
        source="Liu et al., 'Understanding R1-Zero-like training', 2025",
        live=("dynamic_sampling",),
        factor=lambda size, settings: (size - 1) / size,
    ),
    Algorithm(
        "grpo",
        parts.STD_SCALED,
        parts.clipped,
        parts.TOKEN_MEAN,
        on_policy=f"each response's score over its length, weighted by its {{R}}'s deviation from the group's mean in "
        f"units of the group's spread: {_NO_SCALAR}",
        off_policy=f"{_SURROGATE}, each response over its length",
        source="Shao et al., 'DeepSeekMath', 2024",
        live=("eps", *_CLIP, "dynamic_sampling"),
    ),
    Algorithm(
        "dr_grpo",
        parts.CENTRED,
        parts.clipped,
        parts.CONSTANT_LENGTH,
        on_policy="(G-1)/(G L) times the gradient of {J}, L the constant length",
        off_policy=f"(G-1)/(G L) times {_SURROGATE}",
        source="Liu et al., 'Understanding R1-Zero-like training', 2025",
        live=(*_CLIP, "length", "dynamic_sampling"),
        factor=lambda size, settings: (size - 1) / (size * settings.length),
    ),
    Algorithm(
        "dapo",
        parts.STD_SCALED,
        parts.clipped,
        parts.GLOBAL_TOKEN_MEAN,
        on_policy="a ratio of two sums over the batch, biased in a small one; as it grows, the {R}'s gradient scaled "
        "by its group's spread, over the expected length",
        off_policy=f"{_SURROGATE}, over the number of tokens",
        source="Yu et al., 'DAPO', 2025",
        live=("eps", *_CLIP, "dynamic_sampling"),
        defaults=Settings(clip_high=0.28, dynamic_sampling=True),
    ),
    Algorithm(
        "gspo",
        parts.STD_SCALED,
        parts.sequence_clipped,
        parts.TOKEN_MEAN,
        on_policy=f"that of grpo, for the ratio's exponent is one over the length: {_NO_SCALAR}",
        off_policy="each response's score over its length, weighted by its advantage and the geometric mean of its "
        "token ratios, without the responses beyond the clip: the expectation under no policy",
        source="Zheng et al., 'GSPO', 2025",
        live=("eps", *_CLIP, "dynamic_sampling"),
        defaults=Settings(clip_low=3e-4, clip_high=4e-4),
    ),
    Algorithm(
        "cispo",
        parts.STD_SCALED,
        parts.clipped_weight,
        parts.GLOBAL_TOKEN_MEAN,
        on_policy="that of dapo",
        off_policy="the score of every token that the sampler drew, weighted by its advantage and its clipped ratio, "
        "over the number of tokens; the baseline leaks where a weight is clipped",
        source="MiniMax, 'MiniMax-M1', 2025",
        live=("eps", "weight_low", "weight_high", "dynamic_sampling"),
        defaults=Settings(weight_high=5.0),
    ),
    Algorithm(
        "ppo",
        parts.LEAVE_ONE_OUT,
        parts.clipped,
        parts.TOKEN_SUM,
        on_policy=_GRADIENT,
        off_policy=_SURROGATE,
        source="Schulman et al., 'Proximal policy optimization algorithms', 2017, with leave-one-out for a critic",
        live=(*_CLIP, "dynamic_sampling"),
        factor=_one,
    ),
    Algorithm(
        "dual_clip",
        parts.LEAVE_ONE_OUT,
        parts.dual_clipped,
        parts.TOKEN_SUM,
        on_policy=_GRADIENT,
        off_policy=f"{_SURROGATE}, and without those of negative advantage whose ratio exceeds the dual clip",
        source="Ye et al., 2020",
        live=(*_CLIP, "dual_clip", "dynamic_sampling"),
        factor=_one,
    ),
    Algorithm(
        "reinforce_pp",
        parts.whitened_to_go,
        parts.clipped,
        parts.GLOBAL_TOKEN_MEAN,
        on_policy="a ratio of sums over the batch, biased in a small one; as it grows, the gradient of {J} over the "
        "deviation of the batch's token returns and the expected length",
        off_policy=f"{_SURROGATE}, over the deviation of the batch's token returns and the number of tokens",
        source="Hu et al., 'REINFORCE++', 2025",
        live=("eps", *_CLIP),
        refuses={"reward_to_go": "credits the KL to go by itself; set kl = reward"},
        least=1,
    ),
    Algorithm(
        "reinforce_pp_baseline",
        parts.whitened_centred,
        parts.clipped,
        parts.GLOBAL_TOKEN_MEAN,
        on_policy="a ratio of sums over the batch, biased in a small one; as it grows, (G-1)/G times the gradient of "
        "{J} over the deviation of the batch's centred returns and the expected length",
        off_policy=f"{_SURROGATE}, over the deviation of the batch's centred returns and the number of tokens",
        source="Hu et al., 'REINFORCE++', 2025",
        live=("eps", *_CLIP),
    ),
    Algorithm(
        "maxrl",
        parts.SUCCESS_SCALED,
        parts.score,
        parts.TOKEN_SUM,
        on_policy="for a reward of 0 or 1, Σ_{{k=0}}^{{G-2}} (1-p)^k times the gradient of the success probability p: "
        "log p, expanded to order G-1; for graded rewards there is no closed form",
        off_policy=_LIKELIHOOD,
        source="Tajwar et al., 'Maximum likelihood reinforcement learning', 2026",
        live=("dynamic_sampling",),
        refuses={"reward": _FRACTION, "overlong_length": _NONNEGATIVE, "overlong_cache": _NONNEGATIVE},
    ),
    Algorithm(
        "pass_at_k",
        parts.PASS_AT_K,
        parts.score,
        parts.TOKEN_SUM,
        on_policy="the gradient of the expected best {R} of k tries",
        off_policy=_LIKELIHOOD,
        source="Walder and Karkhanis, 'Pass@K policy optimization', 2025",
        live=("k", "dynamic_sampling"),
        refuses={"reward": _RANKS},
    ),
    Algorithm(
        "tis",
        parts.LEAVE_ONE_OUT,
        parts.truncated,
        parts.TOKEN_SUM,
        on_policy=_GRADIENT,
        off_policy=f"{_SURROGATE}, each weighted by the ratio of the policy at the start of the update to the sampler, "
        "cut off at weight_high",
        source="Yao et al., 'Your efficient RL framework secretly brings you off-policy RL training', 2025",
        live=(*_CLIP, "weight_high", "level", "dynamic_sampling"),
        factor=_one,
    ),
    Algorithm(
        "mis",
        parts.LEAVE_ONE_OUT,
        parts.inside,
        parts.TOKEN_SUM,
        on_policy=_GRADIENT,
        off_policy=f"{_SURROGATE}, each weighted by the ratio of the policy at the start of the update to the sampler, "
        "and left out where that is outside weight_low to weight_high",
        source="Ling Team, 'Every step evolves' (IcePop), 2025",
        live=(*_CLIP, "weight_low", "weight_high", "level", "dynamic_sampling"),
        defaults=Settings(weight_low=0.5, weight_high=5.0),
        factor=_one,
    ),
    Algorithm(
        "sequence_is",
        parts.LEAVE_ONE_OUT,
        parts.weighted_score,
        parts.TOKEN_SUM,
        on_policy=_GRADIENT,
        off_policy=_COVERED,
        source="Precup, Sutton, Singh, 2000",
        live=("dynamic_sampling",),
        factor=_one,
        any_sampler=True,
    ),
    Algorithm(
        "rloo_distinct",
        parts.distinct,
        parts.weighted_score,
        parts.TOKEN_SUM,
        on_policy=f"{_GRADIENT}, with the repeats of a response in its group averaged out",
        off_policy=_COVERED,
        source="Rao, 1945; Blackwell, 1947; Kool et al., 2020; closed form in assay.core.duplicates",
        live=("dynamic_sampling",),
        factor=_one,
        any_sampler=True,
    ),
)

ALGORITHMS: dict[str, Algorithm] = {algorithm.name: algorithm for algorithm in _TABLE}
"""Every algorithm by the name that a recipe chooses it with."""
