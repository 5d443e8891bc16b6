"""A numerator under one mask and a denominator under another, and masks that come after the arithmetic."""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.audit.invariants.masked_cases import example_case
from assay.audit.invariants.masking import masked_inert
from specimens.bench import Specimen

Tokens = Float[Tensor, "B T"]
Rows = Float[Tensor, " B"]
Mask = Bool[Tensor, "B T"]
Loss = Float[Tensor, ""]
BOUND, BETA = 20.0, 0.1


def terms(logp: Tokens, adv: Rows, mask: Mask) -> Tokens:
    """Return each token's share of the policy loss, 0 under the mask whatever stands there."""
    return -adv[:, None] * torch.where(mask, logp, 0.0)


def squared_gap(logp: Tokens, logp_ref: Tokens, mask: Mask) -> Tokens:
    return torch.where(mask, logp - logp_ref, 0.0).square() / 2


def clamped_of_all(log_ratio: Tokens, mask: Mask) -> Loss:
    return (log_ratio.abs() > BOUND).sum() / mask.sum()


def clamped_of_unmasked(log_ratio: Tokens, mask: Mask) -> Loss:
    return ((log_ratio.abs() > BOUND) & mask).sum() / mask.sum()


def truncated_in_the_count(logp: Tokens, adv: Rows, completion: Mask, truncated: Bool[Tensor, " B"]) -> Loss:
    return terms(logp, adv, completion & ~truncated[:, None]).sum() / completion.sum()


def truncated_in_neither(logp: Tokens, adv: Rows, completion: Mask, truncated: Bool[Tensor, " B"]) -> Loss:
    final = completion & ~truncated[:, None]
    return terms(logp, adv, final).sum() / final.sum()


def kl_over_padding(logp: Tokens, logp_ref: Tokens, adv: Rows, mask: Mask) -> Loss:
    return terms(logp, adv, mask).sum() / mask.sum() + BETA * squared_gap(logp, logp_ref, mask).mean()


def kl_under_the_mask(logp: Tokens, logp_ref: Tokens, adv: Rows, mask: Mask) -> Loss:
    both = terms(logp, adv, mask) + BETA * squared_gap(logp, logp_ref, mask)
    return both.sum() / mask.sum()


def mean_of_all_positions(logp: Tokens, adv: Rows, mask: Mask) -> Loss:
    return terms(logp, adv, mask).mean()


def mean_of_unmasked_positions(logp: Tokens, adv: Rows, mask: Mask) -> Loss:
    return terms(logp, adv, mask).sum() / mask.sum()


def rejected_by_weight(logp: Tokens, adv: Rows, kept: Mask, mask: Mask) -> Loss:
    """Give rejected tokens weight 0 and count them all the same."""
    return (terms(logp, adv, mask & kept).sum(1) / mask.sum(1).clamp(min=1)).mean()


def rejected_by_mask(logp: Tokens, adv: Rows, kept: Mask, mask: Mask) -> Loss:
    final = mask & kept
    return (terms(logp, adv, final).sum(1) / final.sum(1).clamp(min=1)).mean()


def masked_after_the_ratio(logp: Tokens, logp_old: Tokens, adv: Rows, mask: Mask) -> Loss:
    return -((logp - logp_old).exp() * adv[:, None] * mask).sum() / mask.sum()


def masked_before_the_ratio(logp: Tokens, logp_old: Tokens, adv: Rows, mask: Mask) -> Loss:
    gap = torch.where(mask, logp, 0.0) - torch.where(mask, logp_old, 0.0)
    return -(gap.exp() * adv[:, None] * mask).sum() / mask.sum()


def completion_mask_alone(logp: Tokens, adv: Rows, completion: Mask, tool: Mask) -> Loss:
    """Compute the fused loss, which is handed no word on who wrote a token."""
    return mean_of_unmasked_positions(logp, adv, completion)


def completion_and_tool_mask(logp: Tokens, adv: Rows, completion: Mask, tool: Mask) -> Loss:
    return mean_of_unmasked_positions(logp, adv, completion & tool)


EXAMPLE = example_case()
MASK = EXAMPLE["mask"] > 0
BATCH = {name: EXAMPLE[name] for name in ("logp", "logp_old", "logp_ref", "adv")} | {"mask": MASK}
COMPLETION = torch.arange(MASK.shape[1]) < torch.tensor([3, 5, 1, 4, 0])[:, None]
TRUNCATED = torch.tensor([False, True, False, False, False])
KEPT = torch.tensor([[True, True, False], [False, True, True], [True, True, True], [True, False, True]])
KEPT = torch.nn.functional.pad(KEPT, (0, 2, 0, 1), value=True)

loss = partial(masked_inert, by="logp", case=BATCH)
SPECIMENS = (
    Specimen(
        "IS-09",
        partial(
            masked_inert,
            case={"log_ratio": torch.tensor([[25.0, 0.5, 0.0]]), "mask": torch.tensor([[True, True, False]])},
        ),
        clamped_of_all,
        clamped_of_unmasked,
    ),
    Specimen(
        "AGG-01",
        partial(
            loss, case=BATCH | {"completion": COMPLETION, "truncated": TRUNCATED}, mask=COMPLETION & ~TRUNCATED[:, None]
        ),
        truncated_in_the_count,
        truncated_in_neither,
    ),
    Specimen("AGG-06", loss, kl_over_padding, kl_under_the_mask),
    Specimen("AGG-15", loss, mean_of_all_positions, mean_of_unmasked_positions),
    Specimen(
        "AGG-16", partial(loss, case=BATCH | {"kept": KEPT}, mask=MASK & KEPT), rejected_by_weight, rejected_by_mask
    ),
    Specimen(
        "MASK-03",
        partial(loss, case=BATCH | {"completion": COMPLETION, "tool": MASK | ~COMPLETION}),
        completion_mask_alone,
        completion_and_tool_mask,
    ),
    Specimen("MASK-15", loss, masked_after_the_ratio, masked_before_the_ratio),
)
