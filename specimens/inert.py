"""Options that are accepted and do nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.invariants.liveness import liveness
from specimens.bench import Specimen
from specimens.sums import k3, ratio_reinforce, reinforce, summed

Tokens = Float[Tensor, "B T"]
Rows = Float[Tensor, " B"]
Loss = Callable[..., Float[Tensor, ""]]


def penalised(penalty: Callable[[Tokens, Tokens], Tokens], beta: float) -> Loss:
    """Return the loss with a KL term, made from ``logp`` and ``logp_ref``."""

    def loss(logp: Tokens, logp_ref: Tokens, adv: Rows, mask: Tokens) -> Tensor:
        return reinforce(logp, adv, mask) + beta * summed(penalty(logp, logp_ref), mask).mean()

    return loss


def kl_of_stored_logp(*, beta: float = 0.1) -> Loss:
    """Build the KL term from the log-probabilities that were stored with the rollout."""
    return penalised(lambda logp, logp_ref: k3(logp_ref - logp.detach()), beta)


def kl_of_current_logp(*, beta: float = 0.1) -> Loss:
    return penalised(lambda logp, logp_ref: k3(logp_ref - logp), beta)


def squared(logp: Tokens, logp_ref: Tokens) -> Tokens:
    return (logp - logp_ref).square() / 2


def kl_without_autograd(*, beta: float = 0.1) -> Loss:
    return penalised(torch.no_grad()(squared), beta)


def kl_with_autograd(*, beta: float = 0.1) -> Loss:
    return penalised(squared, beta)


def reference_read_directly(*, reference: str = "logp_ref", beta: float = 0.1) -> Loss:
    """Accept the name under which the reference's log-probabilities are found, and read the usual one."""
    return kl_of_current_logp(beta=beta)


def reference_read_by_key(*, reference: str = "logp_ref", beta: float = 0.1) -> Loss:
    def loss(logp: Tokens, logp_old: Tokens, logp_ref: Tokens, adv: Rows, mask: Tokens) -> Tensor:
        stored = {"logp_old": logp_old, "logp_ref": logp_ref}[reference]
        return kl_of_current_logp(beta=beta)(logp=logp, logp_ref=stored, adv=adv, mask=mask)

    return loss


def fused_without_correction(*, beta: float = 0.1, use_bias_correction_kl: bool = False) -> Loss:
    def loss(logp: Tokens, logp_old: Tokens, logp_ref: Tokens, adv: Rows, mask: Tokens) -> Tensor:
        penalty = summed(k3(logp_ref - logp), mask).mean()
        return ratio_reinforce(logp, logp_old, adv, mask) + beta * penalty

    return loss


def fused_with_correction(*, beta: float = 0.1, use_bias_correction_kl: bool = False) -> Loss:
    def loss(logp: Tokens, logp_old: Tokens, logp_ref: Tokens, adv: Rows, mask: Tokens) -> Tensor:
        ratio = (logp - logp_old).exp() if use_bias_correction_kl else torch.ones_like(logp)
        penalty = summed(ratio * k3(logp_ref - logp), mask).mean()
        return ratio_reinforce(logp, logp_old, adv, mask) + beta * penalty

    return loss


def refreshed_reference(*, beta: float = 0.0, sync_ref_model: bool = False) -> Loss:
    """Take the policy before the update for a reference that was just synchronised."""

    def loss(logp: Tokens, logp_old: Tokens, logp_ref: Tokens, adv: Rows, mask: Tokens) -> Tensor:
        reference = logp_old if sync_ref_model else logp_ref
        return penalised(squared, beta)(logp=logp, logp_ref=reference, adv=adv, mask=mask)

    return loss


def refreshed_reference_if_there_is_one(*, beta: float = 0.0, sync_ref_model: bool = False) -> Loss:
    if sync_ref_model and not beta:
        raise ValueError("sync_ref_model = True with beta = 0: there is no reference to synchronise; set beta")
    return refreshed_reference(beta=beta, sync_ref_model=sync_ref_model)


def clipped(logp: Tokens, logp_old: Tokens, adv: Rows, mask: Tokens, clip: float, dual: float | None) -> Tensor:
    ratio, advantage = (logp - logp_old).exp(), adv[:, None]
    terms = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    if dual is not None:
        terms = torch.where(advantage < 0, torch.maximum(terms, dual * advantage), terms)
    return -summed(terms, mask).mean()


def dual_clip_swallowed(*, clip_ratio: float = 0.2, dual_clip: float | None = None, **unused: object) -> Loss:
    """Call the option by another name than the caller does."""
    return lambda logp, logp_old, adv, mask: clipped(logp, logp_old, adv, mask, clip_ratio, dual_clip)


def dual_clip_named(*, clip_ratio: float = 0.2, clip_ratio_c: float | None = None) -> Loss:
    return lambda logp, logp_old, adv, mask: clipped(logp, logp_old, adv, mask, clip_ratio, clip_ratio_c)


coefficient = partial(liveness, options={"beta": 0.3})

SPECIMENS = (
    Specimen("KL-01", coefficient, kl_of_stored_logp, kl_of_current_logp),
    Specimen("KL-03", coefficient, kl_without_autograd, kl_with_autograd),
    # of the report: the key that is not read; that padding is on a side that was not configured is left out
    Specimen(
        "KL-16",
        partial(liveness, options={"reference": "logp_old", "beta": 0.3}),
        reference_read_directly,
        reference_read_by_key,
    ),
    Specimen(
        "KL-17",
        partial(liveness, options={"use_bias_correction_kl": True, "beta": 0.3}),
        fused_without_correction,
        fused_with_correction,
    ),
    Specimen(
        "REF-05",
        partial(liveness, options={"sync_ref_model": True, "beta": 0.3}),
        refreshed_reference,
        refreshed_reference_if_there_is_one,
    ),
    Specimen(
        "X-09",
        partial(liveness, options={"clip_ratio": 0.4, "clip_ratio_c": 3.0}),
        dual_clip_swallowed,
        dual_clip_named,
    ),
)
