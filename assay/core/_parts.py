"""The parts that :mod:`assay.core.algorithms` puts together: advantages, terms and weights of rows under settings.

Each function here only picks columns and settings; what it computes, its estimand and its source are in the function
that it calls.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float, Int
from torch import Tensor

from assay.core import advantages, losses, pass_at_k, ratios, returns, weights
from assay.core.duplicates import distinct_leave_one_out, response_ids
from assay.core.estimator import Rows, Weighting, log_ratio_to_reference
from assay.core.kl import kl_in_reward
from assay.core.masking import masked
from assay.core.settings import Settings
from assay.core.weights import Totals
from assay.errors import InputError

Grouped = Callable[[Float[Tensor, " B"], Int[Tensor, " B"], Settings], Tensor]


# Advantages: [B, 1], or [B, T] where tokens differ.


def _returns(rows: Rows, settings: Settings) -> Float[Tensor, " B"]:
    """Return the rewards, shaped by k1 of the whole response where the KL is in the reward."""
    if settings.kl != "reward":
        return rows.reward
    logp, logp_ref = masked(rows.logp, rows.mask).sum(1), masked(rows.logp_ref, rows.mask).sum(1)
    return kl_in_reward(rows.reward, logp, logp_ref, beta=settings.beta)


def _of_returns(grouped: Grouped) -> Callable[[Rows, Settings], Tensor]:
    def advantage(rows: Rows, settings: Settings) -> Float[Tensor, "B 1"]:
        made: Tensor = grouped(_returns(rows, settings), rows.group, settings)
        return made[:, None]

    return advantage


PLAIN = _of_returns(lambda made, group, settings: made)
LEAVE_ONE_OUT = _of_returns(lambda made, group, settings: advantages.leave_one_out(made, group))
CENTRED = _of_returns(lambda made, group, settings: advantages.mean_centred(made, group))
STD_SCALED = _of_returns(lambda made, group, settings: advantages.std_scaled(made, group, eps=settings.eps))
SUCCESS_SCALED = _of_returns(lambda made, group, settings: advantages.success_scaled(made, group))
PASS_AT_K = _of_returns(lambda made, group, settings: pass_at_k.pass_at_k(made, group, k=settings.k))


def whitened_to_go(rows: Rows, settings: Settings) -> Float[Tensor, "B T"]:
    beta = settings.beta if settings.kl == "reward" else 0.0
    made = returns.reward_to_go(rows.reward, beta * log_ratio_to_reference(rows).detach(), rows.mask)
    return returns.whitened(made, rows.mask, eps=settings.eps)


def whitened_centred(rows: Rows, settings: Settings) -> Float[Tensor, "B T"]:
    return returns.whitened(CENTRED(rows, settings), rows.mask, eps=settings.eps)


def distinct(rows: Rows, settings: Settings) -> Float[Tensor, "B 1"]:
    if rows.tokens is None:
        raise InputError("rloo_distinct needs the tokens of every response, and the rows have none")
    drawn = masked(rows.logp_sampler, rows.mask).sum(1)
    response = response_ids(rows.tokens, rows.mask, rows.group)
    return distinct_leave_one_out(_returns(rows, settings), drawn, response, rows.group)[:, None]


# Terms: [B, T].


def _token_ratio(rows: Rows) -> Float[Tensor, "B T"]:
    return ratios.token_ratio(rows.logp, rows.logp_old, rows.mask)


def score(rows: Rows, adv: Tensor, settings: Settings) -> Float[Tensor, "B T"]:
    return losses.score_terms(rows.logp, adv, rows.mask)


def weighted_score(rows: Rows, adv: Tensor, settings: Settings) -> Float[Tensor, "B T"]:
    weight = ratios.sequence_ratio(rows.logp, rows.logp_sampler, rows.mask).detach()
    return losses.score_terms(rows.logp, weight * adv, rows.mask)


def clipped(rows: Rows, adv: Tensor, settings: Settings) -> Float[Tensor, "B T"]:
    return losses.clipped_terms(_token_ratio(rows), adv, rows.mask, low=settings.clip_low, high=settings.clip_high)


def dual_clipped(rows: Rows, adv: Tensor, settings: Settings) -> Float[Tensor, "B T"]:
    return losses.dual_clip_terms(
        _token_ratio(rows),
        adv,
        rows.mask,
        low=settings.clip_low,
        high=settings.clip_high,
        dual=settings.dual_clip,
    )


def sequence_clipped(rows: Rows, adv: Tensor, settings: Settings) -> Float[Tensor, "B T"]:
    ratio = ratios.geometric_ratio(rows.logp, rows.logp_old, rows.mask)
    return losses.clipped_terms(ratio, adv, rows.mask, low=settings.clip_low, high=settings.clip_high)


def clipped_weight(rows: Rows, adv: Tensor, settings: Settings) -> Float[Tensor, "B T"]:
    return losses.clipped_weight_terms(
        rows.logp, _token_ratio(rows), adv, rows.mask, low=settings.weight_low, high=settings.weight_high
    )


def _mismatch(rows: Rows, settings: Settings) -> Float[Tensor, "B T"]:
    """Return the ratio of the policy at the start of the update to what drew the responses."""
    made = ratios.token_ratio if settings.level == "token" else ratios.sequence_ratio
    return made(rows.logp_old, rows.logp_sampler, rows.mask).expand_as(rows.mask)


def truncated(rows: Rows, adv: Tensor, settings: Settings) -> Float[Tensor, "B T"]:
    return clipped(rows, ratios.truncated(_mismatch(rows, settings), high=settings.weight_high) * adv, settings)


def inside(rows: Rows, adv: Tensor, settings: Settings) -> Float[Tensor, "B T"]:
    weight = ratios.inside(_mismatch(rows, settings), low=settings.weight_low, high=settings.weight_high)
    return clipped(rows, weight * adv, settings)


# Weights: [B, T].


def _by_response(rows: Rows, counts: Totals, settings: Settings) -> Float[Tensor, "B T"]:
    return weights.token_sum(rows.mask, responses=counts.responses, dtype=rows.logp.dtype)


TOKEN_SUM = Weighting(_by_response, "a mean over responses of sums over their tokens", lambda settings: 1.0)
TOKEN_MEAN = Weighting(
    lambda rows, counts, settings: weights.token_mean(rows.mask, responses=counts.responses, dtype=rows.logp.dtype),
    "a mean over responses of means over their tokens",
)
GLOBAL_TOKEN_MEAN = Weighting(
    lambda rows, counts, settings: weights.global_token_mean(rows.mask, tokens=counts.tokens, dtype=rows.logp.dtype),
    "a mean over all tokens of the batch",
)
CONSTANT_LENGTH = Weighting(
    lambda rows, counts, settings: weights.constant_length(
        rows.mask, responses=counts.responses, length=settings.length, dtype=rows.logp.dtype
    ),
    "a mean over responses of sums over their tokens, over a constant length",
    lambda settings: 1.0 / settings.length,
)
