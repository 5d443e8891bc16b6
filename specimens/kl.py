"""KL terms in a loss whose gradient is not that of the KL they are named after.

Each report is tried against the objective that its right form ascends exactly: the KL of the whole response (``kl``),
the per-token KL at frozen states (``frozen_kl``), or that under a stale sampler's visits (``sampler_kl``).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from jaxtyping import Float
from torch import Tensor

from assay.audit.invariants.expected import expected_gradient
from assay.tree.worlds import drifted_world, small_world
from specimens.bench import Specimen
from specimens.sums import k3, ratio_reinforce, reinforce, summed

BETA = 0.1
BOUND = 20.0
Tokens = Float[Tensor, "B T"]
Rows = Float[Tensor, " B"]
Loss = Float[Tensor, ""]


def k1_in_loss(logp: Tokens, logp_ref: Tokens, adv: Rows, mask: Tokens) -> Loss:
    return reinforce(logp, adv, mask) + BETA * summed(logp - logp_ref, mask).mean()


def k2_in_loss(logp: Tokens, logp_ref: Tokens, adv: Rows, mask: Tokens) -> Loss:
    return reinforce(logp, adv, mask) + BETA * summed((logp - logp_ref).square() / 2, mask).mean()


def k2_subtracted(logp: Tokens, logp_ref: Tokens, adv: Rows, mask: Tokens) -> Loss:
    return reinforce(logp, adv, mask) - BETA * summed((logp - logp_ref).square() / 2, mask).mean()


def k3_in_loss(logp: Tokens, logp_ref: Tokens, adv: Rows, mask: Tokens) -> Loss:
    return reinforce(logp, adv, mask) + BETA * summed(k3(logp_ref - logp), mask).mean()


def k3_with_its_score(logp: Tokens, logp_ref: Tokens, adv: Rows, mask: Tokens) -> Loss:
    """Add what the estimate owes to its tokens being drawn from the policy."""
    estimate = k3(logp_ref - logp)
    return reinforce(logp, adv, mask) + BETA * summed(estimate + estimate.detach() * logp, mask).mean()


def log_ratio_times_score(logp: Tokens, logp_ref: Tokens, adv: Rows, mask: Tokens) -> Loss:
    return reinforce(logp, adv, mask) + BETA * summed((logp - logp_ref).detach() * logp, mask).mean()


def log_ratio_of_response_times_score(logp: Tokens, logp_ref: Tokens, adv: Rows, mask: Tokens) -> Loss:
    apart = summed(logp - logp_ref, mask).detach()
    return reinforce(logp, adv, mask) + BETA * (apart * summed(logp, mask)).mean()


def k3_times_response_ratio(logp: Tokens, logp_old: Tokens, logp_ref: Tokens, adv: Rows, mask: Tokens) -> Loss:
    """Weigh every token's estimate by the length-normalised ratio of its response."""
    ratio = (summed(logp - logp_old, mask) / mask.sum(1)).exp()
    return reinforce(logp, adv, mask) + BETA * summed(ratio[:, None] * k3(logp_ref - logp), mask).mean()


def k3_times_token_ratio(logp: Tokens, logp_old: Tokens, logp_ref: Tokens, adv: Rows, mask: Tokens) -> Loss:
    ratio = (logp - logp_old).exp()
    return reinforce(logp, adv, mask) + BETA * summed(ratio * k3(logp_ref - logp), mask).mean()


def stale_k2(logp: Tokens, logp_old: Tokens, logp_ref: Tokens, adv: Rows, mask: Tokens) -> Loss:
    """Correct the policy term for a stale sampler, and not the KL term."""
    weight = summed(logp - logp_old, mask).exp()
    return -(weight * adv).mean() + BETA * (summed(logp - logp_ref, mask).square() / 2).mean()


def weighted_log_ratio(logp: Tokens, logp_old: Tokens, logp_ref: Tokens, adv: Rows, mask: Tokens) -> Loss:
    weight = summed(logp - logp_old, mask).exp()
    apart = summed(logp - logp_ref, mask).detach()
    return -(weight * adv).mean() + BETA * (weight * apart).mean()


def stale_k3(logp: Tokens, logp_old: Tokens, logp_ref: Tokens, adv: Rows, mask: Tokens) -> Loss:
    return ratio_reinforce(logp, logp_old, adv, mask) + BETA * summed(k3(logp_ref - logp), mask).mean()


def stale_k3_times_ratio(logp: Tokens, logp_old: Tokens, logp_ref: Tokens, adv: Rows, mask: Tokens) -> Loss:
    penalty = (logp - logp_old).exp() * k3(logp_ref - logp)
    return ratio_reinforce(logp, logp_old, adv, mask) + BETA * summed(penalty, mask).mean()


def stale_k3_bounded(logp: Tokens, logp_old: Tokens, logp_ref: Tokens, adv: Rows, mask: Tokens) -> Loss:
    """Bound the log-ratio before its exponential is taken."""
    penalty = (logp - logp_old).exp() * k3((logp_ref - logp).clamp(-BOUND, BOUND))
    return ratio_reinforce(logp, logp_old, adv, mask) + BETA * summed(penalty, mask).mean()


def log_ratio_to_sampler(logp: Tokens, logp_sampler: Tokens, adv: Rows, mask: Tokens) -> Loss:
    return ratio_reinforce(logp, logp_sampler, adv, mask) + BETA * summed(logp - logp_sampler, mask).mean()


def log_ratio_times_ratio_to_sampler(logp: Tokens, logp_sampler: Tokens, adv: Rows, mask: Tokens) -> Loss:
    apart = logp - logp_sampler
    penalty = summed(apart.detach() * apart.exp(), mask).mean()
    return ratio_reinforce(logp, logp_sampler, adv, mask) + BETA * penalty


STALE = small_world(tokens=2, off_policy=True)
SAMPLER_IS_REFERENCE = tuple(replace(problem, logits_ref=problem.logits_old) for problem in STALE)

frozen = partial(expected_gradient, objective=f"reward - {BETA}*frozen_kl", world=small_world(tokens=2))
sequence = partial(expected_gradient, objective=f"reward - {BETA}*kl", world=small_world(tokens=2))
stale_sequence = partial(expected_gradient, objective=f"reward - {BETA}*kl", world=STALE)
surrogate = partial(expected_gradient, objective=f"surrogate - {BETA}*sampler_kl")

SPECIMENS = (
    Specimen("KL-02", frozen, k1_in_loss, k2_in_loss),
    Specimen("KL-04", frozen, k2_subtracted, k2_in_loss),
    Specimen("KL-05", stale_sequence, stale_k2, weighted_log_ratio),
    Specimen("KL-06", frozen, k3_in_loss, k3_with_its_score),
    Specimen("KL-07", sequence, k1_in_loss, log_ratio_of_response_times_score),
    Specimen("KL-08", partial(surrogate, world=STALE), stale_k3, stale_k3_times_ratio),
    Specimen("KL-09", frozen, k3_times_response_ratio, k3_times_token_ratio),
    Specimen("KL-10", partial(surrogate, world=drifted_world()), stale_k3_times_ratio, stale_k3_bounded),
    Specimen(
        "KL-12",
        partial(surrogate, world=SAMPLER_IS_REFERENCE),
        log_ratio_to_sampler,
        log_ratio_times_ratio_to_sampler,
    ),
    Specimen("KL-13", frozen, k3_in_loss, k2_in_loss),
    Specimen("KL-14", frozen, k3_in_loss, log_ratio_times_score),
)
