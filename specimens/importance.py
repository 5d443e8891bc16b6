"""Importance ratios that are no ratios: summed, broadcast over other rows, overflowing, recomputed or constant."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.invariants.expected import expected_gradient
from assay.tree.world import TreeProblem, World
from assay.tree.worlds import small_world
from specimens.bench import Specimen
from specimens.sums import summed

Tokens = Float[Tensor, "B T"]
Rows = Float[Tensor, " B"]
Loss = Float[Tensor, ""]
BETA, EPSILON, BOUND = 0.1, 0.2, 20.0


def sum_of_token_ratios(logp: Tokens, logp_old: Tokens, logp_sampler: Tokens, adv: Rows, mask: Tokens) -> Loss:
    weight = summed((logp_old - logp_sampler).exp(), mask)
    return -(weight * adv * summed(logp, mask)).mean()


def ratio_of_the_response(logp: Tokens, logp_old: Tokens, logp_sampler: Tokens, adv: Rows, mask: Tokens) -> Loss:
    weight = summed(logp_old - logp_sampler, mask).exp()
    return -(weight * adv * summed(logp, mask)).mean()


def geometric_mean_surrogate(logp: Tokens, logp_old: Tokens, adv: Rows, mask: Tokens) -> Rows:
    """Return one number a response, its ratio the geometric mean over its tokens."""
    return adv * (summed(logp - logp_old, mask) / mask.sum(1)).exp()


def token_weights_on_rows(logp: Tokens, logp_old: Tokens, logp_sampler: Tokens, adv: Rows, mask: Tokens) -> Loss:
    """Multiply ``[B]`` by ``[B, T]``: with one token a response that is every response by every other's weight."""
    weight = (logp_old - logp_sampler).exp()
    return -(geometric_mean_surrogate(logp, logp_old, adv, mask) * weight).mean()


def row_weights_on_rows(logp: Tokens, logp_old: Tokens, logp_sampler: Tokens, adv: Rows, mask: Tokens) -> Loss:
    weight = summed(logp_old - logp_sampler, mask).exp()
    return -(geometric_mean_surrogate(logp, logp_old, adv, mask) * weight).mean()


def kept(adv: Tensor, logp: Tokens, logp_old: Tokens, mask: Tokens, *, threshold: float) -> Tensor:
    """Return 0 for a response of negative advantage that the policy has moved away from; ``adv`` must be ``[B, 1]``."""
    moved = summed(logp_old - logp, mask)[:, None] / mask.sum(1, keepdim=True)
    return ((adv >= 0) | (moved <= threshold)).double()


def off_policy_mask_of_flat_advantages(logp: Tokens, logp_old: Tokens, adv: Rows, mask: Tokens) -> Loss:
    """Compare advantages ``[B]`` with distances ``[B, 1]``: every response is masked by the others' signs."""
    terms = adv[:, None] * (logp - logp_old).exp() * mask
    return -(terms * kept(adv, logp, logp_old, mask, threshold=THRESHOLD)).mean()


def off_policy_mask_of_columns(logp: Tokens, logp_old: Tokens, adv: Rows, mask: Tokens) -> Loss:
    terms = adv[:, None] * (logp - logp_old).exp() * mask
    return -(terms * kept(adv[:, None], logp, logp_old, mask, threshold=THRESHOLD)).mean()


def clipped_sequence_loss(log_ratio: Rows, adv: Rows) -> Loss:
    ratio = log_ratio.exp()
    return -torch.minimum(ratio * adv, ratio.clamp(1 - EPSILON, 1 + EPSILON) * adv).mean()


def sequence_ratio_unbounded(logp: Tokens, logp_old: Tokens, adv: Rows, mask: Tokens) -> Loss:
    return clipped_sequence_loss(summed(logp - logp_old, mask) / mask.sum(1), adv)


def sequence_ratio_bounded(logp: Tokens, logp_old: Tokens, adv: Rows, mask: Tokens) -> Loss:
    """Bound the mean over the tokens, not the tokens: +100 and -100 are still a ratio of 1."""
    return clipped_sequence_loss((summed(logp - logp_old, mask) / mask.sum(1)).clamp(-BOUND, BOUND), adv)


def recomputed_denominator(logp: Tokens, adv: Rows, mask: Tokens) -> Loss:
    """Score stale responses with the current weights and call that the old policy: the ratio is always 1."""
    ratio = summed(logp - logp.detach(), mask).exp()
    return -torch.minimum(ratio * adv, ratio.clamp(1 - EPSILON, 1 + EPSILON) * adv).mean()


def decoupled_denominators(logp: Tokens, logp_sampler: Tokens, adv: Rows, mask: Tokens) -> Loss:
    """Clip against the proximal policy, and weigh by it over the policy that drew the responses."""
    proximal = logp.detach()
    weight = summed(proximal - logp_sampler, mask).exp()
    ratio = summed(logp - proximal, mask).exp()
    return -(weight * torch.minimum(ratio * adv, ratio.clamp(1 - EPSILON, 1 + EPSILON) * adv)).mean()


def penalised_ratio(log_ratio: Tokens, logp: Tokens, logp_ref: Tokens, adv: Rows, mask: Tokens) -> Loss:
    penalty = BETA * (logp - logp_ref).square() / 2
    return -summed(log_ratio.exp() * adv[:, None] - penalty, mask).mean()


def level_none_is_zeros(logp: Tokens, logp_ref: Tokens, adv: Rows, mask: Tokens) -> Loss:
    """Take an unset ratio level for a log-ratio of zero: only the KL term is left to move weights."""
    return penalised_ratio(torch.zeros_like(logp), logp, logp_ref, adv, mask)


def level_token(logp: Tokens, logp_old: Tokens, logp_ref: Tokens, adv: Rows, mask: Tokens) -> Loss:
    return penalised_ratio(logp - logp_old, logp, logp_ref, adv, mask)


def best_is_left_behind(problem: TreeProblem) -> TreeProblem:
    """Reward each response by how far the policy has moved away from it, so that an off-policy mask drops none."""
    moved = (problem.tree.token_logp(problem.logits_old) - problem.tree.token_logp(problem.logits)).sum(1)
    return replace(problem, reward=(moved > THRESHOLD).double())


def overflowing(problem: TreeProblem) -> TreeProblem:
    """Let the trainer's old log-probability of a rare token be thousands of nats below the sampler's."""
    rare, lost = problem.logits.clone(), problem.logits.clone()
    rare[:, -1] -= 50.0
    lost[:, -1] -= 4000.0
    return replace(problem, logits=rare, logits_old=lost, logits_sampler=rare)


THRESHOLD = 0.05
MISMATCH = small_world(tokens=2, mismatch=True)
STALE = small_world(tokens=2, off_policy=True)
ONE_TOKEN = small_world(max_length=1, end=None, mismatch=True)
LEFT_BEHIND: World = tuple(map(best_is_left_behind, small_world(max_length=1, end=None, off_policy=True)))
OVERFLOWING: World = tuple(map(overflowing, small_world(end=None)))

SPECIMENS = (
    Specimen("IS-01", partial(expected_gradient, world=MISMATCH), sum_of_token_ratios, ratio_of_the_response),
    Specimen("IS-05", partial(expected_gradient, world=ONE_TOKEN), token_weights_on_rows, row_weights_on_rows),
    Specimen(
        "IS-06",
        partial(expected_gradient, world=LEFT_BEHIND),
        off_policy_mask_of_flat_advantages,
        off_policy_mask_of_columns,
    ),
    Specimen(
        "IS-07",
        partial(expected_gradient, objective="0.5*reward", world=OVERFLOWING),
        sequence_ratio_unbounded,
        sequence_ratio_bounded,
    ),
    Specimen("OFF-07", partial(expected_gradient, world=STALE), recomputed_denominator, decoupled_denominators),
    Specimen(
        "X-08",
        partial(expected_gradient, objective=f"reward - {BETA}*frozen_kl", world=small_world()),
        level_none_is_zeros,
        level_token,
    ),
)
