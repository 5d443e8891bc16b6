"""What must be known before training begins, and is read wrong: ratio 1, KL 0, the reference."""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Float, Int
from torch import Tensor

from assay.audit.invariants.fixed_points import Weights, fixed_points, reference_after_restart
from specimens.bench import Specimen
from specimens.sums import summed

Tokens = Float[Tensor, "B T"]
TEMPERATURE = 0.7
Started = tuple[Float[Tensor, "I V"], Float[Tensor, "I V"]]


def mean_ratio_of_columns(logp: Tokens, logp_old: Tokens, mask: Tokens) -> dict[str, Tensor]:
    """Multiply weights ``[B, 1]`` by the row mask ``[B]``: the sum runs over B times B products."""
    weights = summed(logp - logp_old, mask).exp()[:, None]
    rows = mask.amax(1)
    return {"ratio": (weights * rows).sum() / rows.sum()}


def mean_ratio_of_rows(logp: Tokens, logp_old: Tokens, mask: Tokens) -> dict[str, Tensor]:
    weights = summed(logp - logp_old, mask).exp()
    rows = mask.amax(1)
    return {"ratio": (weights * rows).sum() / rows.sum()}


def token_logp(logits: Float[Tensor, "B T V"], tokens: Int[Tensor, "B T"], temperature: float) -> Tokens:
    return (logits / temperature).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


def mean_ratio(new: Tokens, old: Tokens, mask: Tokens) -> dict[str, Tensor]:
    return {"ratio": summed((new - old).exp(), mask).sum() / mask.sum()}


def old_from_processed_scores(
    logits: Float[Tensor, "B T V"], logits_old: Float[Tensor, "B T V"], tokens: Int[Tensor, "B T"], mask: Tokens
) -> dict[str, Tensor]:
    """Take the old log-probabilities after the sampler's temperature and the new ones without."""
    return mean_ratio(token_logp(logits, tokens, 1.0), token_logp(logits_old, tokens, TEMPERATURE), mask)


def both_from_processed_scores(
    logits: Float[Tensor, "B T V"], logits_old: Float[Tensor, "B T V"], tokens: Int[Tensor, "B T"], mask: Tokens
) -> dict[str, Tensor]:
    return mean_ratio(token_logp(logits, tokens, TEMPERATURE), token_logp(logits_old, tokens, TEMPERATURE), mask)


def policy_of(weights: Weights) -> Float[Tensor, "I V"]:
    return weights["base"] + weights["adapter"]


def reference_taken_after_loading(initial: Weights, saved: Weights | None) -> Started:
    weights: Mapping[str, Tensor] = initial if saved is None else saved
    return policy_of(weights), policy_of(weights)


def reference_taken_before_loading(initial: Weights, saved: Weights | None) -> Started:
    return policy_of(initial if saved is None else saved), policy_of(initial)


def reference_without_adapter(initial: Weights, saved: Weights | None) -> Started:
    """Disable the adapter to score under the reference, although training began with one."""
    return policy_of(initial if saved is None else saved), initial["base"]


SPECIMENS = (
    Specimen("IS-04", fixed_points, mean_ratio_of_columns, mean_ratio_of_rows),
    Specimen("LP-11", fixed_points, old_from_processed_scores, both_from_processed_scores),
    Specimen("REF-01", reference_after_restart, reference_taken_after_loading, reference_taken_before_loading),
    Specimen("REF-03", reference_after_restart, reference_without_adapter, reference_taken_before_loading),
)
UNDECIDABLE = {
    "LP-12": "the thread names no cause: kernels or precisions that differ make a ratio of nearly 1, which no small "
    "exact case has; fixed_points on the trainer in question decides it"
}
