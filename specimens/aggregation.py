"""Token means taken inside each micro-batch, and reductions that are not what their name says.

A form is what ``backward`` is called on for one micro-batch; gradients then add up on a rank and are averaged over
ranks.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.check import Check
from assay.audit.invariants.layouts import MicroBatch, Window, example_rows
from assay.audit.invariants.partition import Step, accumulated, partition
from specimens.bench import Specimen

LONGEST = 4
Loss = Float[Tensor, ""]


def policy_terms(micro: MicroBatch) -> Float[Tensor, "B T"]:
    """Return each token's share of the policy loss."""
    return -micro.adv * micro.logp * micro.mask


def likelihood_terms(micro: MicroBatch) -> Float[Tensor, "B T"]:
    return -micro.logp * micro.mask


def mean_of_tokens(terms: Float[Tensor, "B T"], mask: Float[Tensor, "B T"]) -> Loss:
    return terms.sum() / mask.sum().clamp(min=1)


def steps(window: Window) -> int:
    """Return how many micro-batches each rank accumulates."""
    return len(window.ranks[0])


def token_mean_of_micro_batch(micro: MicroBatch, window: Window) -> Loss:
    return mean_of_tokens(policy_terms(micro), micro.mask) / steps(window)


def token_mean_of_window(micro: MicroBatch, window: Window) -> Loss:
    """Undo both averages that follow: over the micro-batches and over the ranks."""
    scale = steps(window) * len(window.ranks) / window.tokens
    return policy_terms(micro).sum() * scale / steps(window)


def distillation_token_mean_of_micro_batch(micro: MicroBatch, window: Window) -> Loss:
    return mean_of_tokens(likelihood_terms(micro), micro.mask)


def distillation_token_mean_of_window(micro: MicroBatch, window: Window) -> Loss:
    return likelihood_terms(micro).sum() * len(window.ranks) / window.tokens


def aggregate(terms: Float[Tensor, "B T"], mask: Float[Tensor, "B T"], tokens: int | None = None) -> Loss:
    """Return the token mean over as many tokens as is said, or over those at hand where nothing is said."""
    return mean_of_tokens(terms, mask) if tokens is None else terms.sum() / tokens


def token_mean_without_a_count(micro: MicroBatch, window: Window) -> Loss:
    return aggregate(policy_terms(micro), micro.mask) / steps(window)


def token_mean_with_the_count(micro: MicroBatch, window: Window) -> Loss:
    return aggregate(policy_terms(micro), micro.mask, window.tokens) * len(window.ranks)


def geometric_terms(micro: MicroBatch) -> Float[Tensor, " B"]:
    """Return each response's advantage times the geometric mean of its ratios."""
    tokens = micro.mask.sum(1).clamp(min=1)
    ratio = ((micro.logp - micro.logp_old) * micro.mask).sum(1) / tokens
    return -micro.adv[:, 0] * ratio.exp()


def geometric_mean_of_micro_batch(micro: MicroBatch, window: Window) -> Loss:
    return geometric_terms(micro).mean()


def geometric_mean_of_window(micro: MicroBatch, window: Window) -> Loss:
    return geometric_terms(micro).sum() * len(window.ranks) / window.sequences


def advantages_over_all_tokens(micro: MicroBatch, window: Window) -> Loss:
    """Scale advantages before the loss, which is then a plain sum."""
    share = micro.adv / window.tokens
    return (-share * micro.logp * micro.mask).sum() * len(window.ranks)


def positives_by_micro_batch(micro: MicroBatch, window: Window) -> Loss:
    """Add the likelihood of good responses, averaged over those at hand."""
    good = micro.mask * (micro.adv > 0)
    return token_mean_with_the_count(micro, window) + mean_of_tokens(-micro.logp * good, good)


def positives_by_window(micro: MicroBatch, window: Window) -> Loss:
    good = micro.mask * (micro.adv > 0)
    count = int((window.rows.mask & (window.rows.adv > 0)[:, None]).sum())
    extra = (-micro.logp * good).sum() * len(window.ranks) / count
    return token_mean_with_the_count(micro, window) + extra


def supervised_mean_of_means(micro: MicroBatch, window: Window) -> Loss:
    return mean_of_tokens(likelihood_terms(micro), micro.mask) / steps(window)


def supervised_sum_over_total(micro: MicroBatch, window: Window) -> Loss:
    return likelihood_terms(micro).sum() / (window.tokens / len(window.ranks))


def weighed_by_sequences(micro: MicroBatch, window: Window) -> Loss:
    share = len(micro.mask) * len(window.ranks) / window.sequences
    return mean_of_tokens(policy_terms(micro), micro.mask) * share


def weighed_by_tokens(micro: MicroBatch, window: Window) -> Loss:
    share = micro.mask.sum() * len(window.ranks) / window.tokens
    return mean_of_tokens(policy_terms(micro), micro.mask) * share


def sequence_mean(micro: MicroBatch, window: Window) -> Loss:
    by_response = policy_terms(micro).sum(1) / micro.mask.sum(1).clamp(min=1)
    return by_response.sum() * len(window.ranks) / window.sequences


def sum_over_padded_width(micro: MicroBatch, window: Window) -> Loss:
    return policy_terms(micro).sum() / micro.mask.shape[1] / steps(window)


def sequence_mean_over_longest(micro: MicroBatch, window: Window) -> Loss:
    by_response = policy_terms(micro).sum(1) / LONGEST
    return by_response.sum() * len(window.ranks) / window.sequences


def token_mean_of_groups(micro: MicroBatch, window: Window) -> Loss:
    """Average over the tokens of each prompt's responses, then over prompts."""
    rows = window.rows
    groups = int(rows.group.max()) + 1
    tokens = torch.zeros(groups, dtype=rows.adv.dtype).index_add(0, rows.group, rows.mask.sum(1).to(rows.adv.dtype))
    weight = 1 / (groups * tokens[rows.group])
    return (policy_terms(micro) * weight[micro.sequence]).sum() * len(window.ranks)


ROWS = example_rows()
MASK = ROWS.mask.double()
BY_SEQUENCE = MASK / MASK.sum(1, keepdim=True).clamp(min=1) / len(MASK)
BY_GROUP = MASK / torch.stack([MASK[ROWS.group == number].sum() for number in ROWS.group])[:, None] / 2


def undeclared(step: Step) -> Check:
    return partition(accumulated(step))


def as_sequence_mean(step: Step) -> Check:
    return partition(accumulated(step), declared=-BY_SEQUENCE * ROWS.adv[:, None])


def as_token_mean_of_groups(step: Step) -> Check:
    return partition(accumulated(step), declared=-BY_GROUP * ROWS.adv[:, None])


SPECIMENS = (
    Specimen("AGG-04", as_sequence_mean, token_mean_of_micro_batch, sequence_mean),
    Specimen("AGG-07", undeclared, token_mean_of_micro_batch, token_mean_of_window),
    Specimen("AGG-08", undeclared, sum_over_padded_width, sequence_mean_over_longest),
    Specimen("AGG-09", undeclared, distillation_token_mean_of_micro_batch, distillation_token_mean_of_window),
    Specimen("AGG-10", undeclared, token_mean_without_a_count, token_mean_with_the_count),
    Specimen("AGG-11", undeclared, geometric_mean_of_micro_batch, geometric_mean_of_window),
    Specimen("AGG-12", as_token_mean_of_groups, token_mean_with_the_count, token_mean_of_groups),
    Specimen("AGG-13", undeclared, token_mean_of_micro_batch, advantages_over_all_tokens),
    Specimen("AGG-18", undeclared, positives_by_micro_batch, positives_by_window),
    Specimen("GA-02", undeclared, supervised_mean_of_means, supervised_sum_over_total),
    Specimen("GA-03", undeclared, weighed_by_sequences, weighed_by_tokens),
    Specimen("X-12", undeclared, weighed_by_sequences, weighed_by_tokens),
    Specimen("X-13", undeclared, token_mean_of_micro_batch, weighed_by_tokens),
)
