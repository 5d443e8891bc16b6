"""Two paths for one formula, of which one forgot something: a mask, a ratio, a divisor, an adapter."""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.invariants.parity import parity
from assay.core.streams import Stream, normals
from specimens.bench import Specimen

PerToken = Float[Tensor, "B T"]
PerRow = Float[Tensor, " B"]
CAP = 2.0


def statistics(values: Float[Tensor, " N"]) -> dict[str, Tensor]:
    return {"mean": values.mean(), "max": values.max(), "min": values.min()}


def of_tokens_that_train(adv: PerRow, mask: PerToken, sample_mask: PerRow) -> dict[str, Tensor]:
    return statistics(adv[:, None].expand_as(mask)[(mask * sample_mask[:, None]) > 0])


def of_all_tokens(adv: PerRow, mask: PerToken) -> dict[str, Tensor]:
    """Leave the mask of whole samples out."""
    return statistics(adv[:, None].expand_as(mask)[mask > 0])


def selected_by_both_masks(adv: PerRow, mask: PerToken, sample_mask: PerRow) -> dict[str, Tensor]:
    rows, columns = (mask * sample_mask[:, None]).nonzero(as_tuple=True)
    return statistics(adv[rows] + 0.0 * columns)


def corrected_for_the_sampler(
    logp: PerToken, logp_old: PerToken, logp_sampler: PerToken, adv: PerRow, mask: PerToken
) -> Tensor:
    """Weigh each token by how much likelier the trainer finds it than the sampler did, at most ``CAP``."""
    weight = (logp_old - logp_sampler).exp().clamp(max=CAP)
    per_token = -weight * (logp - logp_old).exp() * adv[:, None]
    return (per_token * mask).sum() / mask.sum()


def fused(logp: PerToken, logp_old: PerToken, adv: PerRow, mask: PerToken) -> Tensor:
    """Go row by row, without what the sampler said."""
    rows = zip(logp, logp_old, adv, mask, strict=True)
    return sum(-((now - old).exp() * a * kept).sum() for now, old, a, kept in rows) / mask.sum()


def fused_with_the_weight(
    logp: PerToken, logp_old: PerToken, logp_sampler: PerToken, adv: PerRow, mask: PerToken
) -> Tensor:
    total = torch.zeros((), dtype=logp.dtype)
    for now, old, drawn, a, kept in zip(logp, logp_old, logp_sampler, adv, mask, strict=True):
        total = total - (torch.minimum((old - drawn).exp(), torch.tensor(CAP)) * (now - old).exp() * a * kept).sum()
    return total / mask.sum()


def micro_batches(count: int, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    return list(zip(*(tensor.chunk(count) for tensor in tensors), strict=True))


def over_the_whole_batchs_tokens(logp: PerToken, adv: PerRow, mask: PerToken, accumulation: int) -> Tensor:
    """Divide each micro-batch's sum, once, by the tokens of the whole generation batch."""
    parts = micro_batches(accumulation, logp, adv, mask)
    return torch.stack([-(now * a[:, None] * kept).sum() for now, a, kept in parts]).sum() / mask.sum()


def fused_over_its_own_tokens(logp: PerToken, adv: PerRow, mask: PerToken, accumulation: int) -> Tensor:
    """Divide by the micro-batch's own tokens, and again by the number of micro-batches."""
    parts = micro_batches(accumulation, logp, adv, mask)
    means = [-(now * a[:, None] * kept).sum() / kept.sum() for now, a, kept in parts]
    return torch.stack(means).sum() / accumulation


def fused_over_items_in_batch(logp: PerToken, adv: PerRow, mask: PerToken, accumulation: int) -> Tensor:
    items = mask.sum()
    parts = micro_batches(accumulation, logp, adv, mask)
    return torch.stack([-((now * a[:, None] * kept) / items).sum() for now, a, kept in parts]).sum()


def mean_of_responses(logp: PerToken, adv: PerRow, mask: PerToken) -> Tensor:
    return -(adv * (logp * mask).sum(1) / mask.sum(1)).mean()


def every_branch_divided(logp: PerToken, adv: PerRow, mask: PerToken, accumulation: int) -> Tensor:
    parts = micro_batches(accumulation, logp, adv, mask)
    return torch.stack([mean_of_responses(*part) / accumulation for part in parts]).sum()


def new_branch_undivided(logp: PerToken, adv: PerRow, mask: PerToken, accumulation: int) -> Tensor:
    """Sum the micro-batches as they are."""
    return torch.stack([mean_of_responses(*part) for part in micro_batches(accumulation, logp, adv, mask)]).sum()


def new_branch_divided(logp: PerToken, adv: PerRow, mask: PerToken, accumulation: int) -> Tensor:
    losses = [mean_of_responses(*part) for part in micro_batches(accumulation, logp, adv, mask)]
    return torch.stack(losses).mean()


Matrix = Float[Tensor, "D D"]


def frozen_adapter(base: Matrix, adapter: Matrix, first_adapter: Matrix, inputs: Matrix) -> Matrix:
    """Score with the adapter as it was when training began."""
    return (inputs @ (base + first_adapter)).log_softmax(-1)


def disabled_adapter(base: Matrix, adapter: Matrix, inputs: Matrix) -> Matrix:
    """Score with the adapter switched off."""
    return (inputs @ base).log_softmax(-1)


def copied_adapter(base: Matrix, first_adapter: Matrix, inputs: Matrix) -> Matrix:
    copy = first_adapter.clone()
    return (inputs @ base + inputs @ copy).log_softmax(-1)


def adapters() -> dict[str, dict[str, Tensor]]:
    """Return a model whose adapter is new, and one whose adapter was trained before."""
    base, adapter, first, inputs = (normals(0, Stream.DATA, 9, problem=part).view(3, 3) for part in range(4))
    common = {"base": base, "adapter": adapter, "inputs": inputs}
    return {
        "a new adapter": {**common, "first_adapter": torch.zeros_like(first)},
        "an adapter trained before": {**common, "first_adapter": first},
    }


def beside(plain: object, **options: object) -> partial[object]:
    """Return the check of a second path beside a plain one."""
    return partial(parity, plain, **options)


SPECIMENS = (
    Specimen("ADV-22", beside(of_tokens_that_train, trained=()), of_all_tokens, selected_by_both_masks),
    Specimen("IS-02", beside(corrected_for_the_sampler), fused, fused_with_the_weight),
    Specimen("AGG-03", beside(over_the_whole_batchs_tokens), fused_over_its_own_tokens, fused_over_items_in_batch),
    Specimen("AGG-05", beside(every_branch_divided), new_branch_undivided, new_branch_divided),
    Specimen("REF-04", beside(frozen_adapter, cases=adapters(), trained=()), disabled_adapter, copied_adapter),
)
