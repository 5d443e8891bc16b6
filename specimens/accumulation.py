"""Factors that are missing, or one too many, where the micro-batches of a window are added up."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.check import Check
from assay.audit.invariants.layouts import MicroBatch, Window, example_rows, layouts
from assay.audit.invariants.partition import Step, Update, accumulated, partition
from specimens.aggregation import policy_terms, undeclared
from specimens.bench import Specimen

Loss = Float[Tensor, ""]


def by_response(micro: MicroBatch) -> Float[Tensor, " B"]:
    """Return each response's mean policy loss; 0 where nothing of it is trained on."""
    return policy_terms(micro).sum(1) / micro.mask.sum(1).clamp(min=1)


def over_tokens_of_rollout(micro: MicroBatch, window: Window) -> Loss:
    return policy_terms(micro).sum() / (window.rollout_tokens / len(window.ranks))


def over_tokens_of_window(micro: MicroBatch, window: Window) -> Loss:
    return policy_terms(micro).sum() / (window.tokens / len(window.ranks))


def over_configured_steps(micro: MicroBatch, window: Window) -> Loss:
    return by_response(micro).mean() / window.planned


def over_steps_taken(micro: MicroBatch, window: Window) -> Loss:
    return by_response(micro).mean() / len(window.ranks[0])


def unscaled(micro: MicroBatch, window: Window) -> Loss:
    return by_response(micro).mean()


def by_share_of_responses(micro: MicroBatch, window: Window) -> Loss:
    """Weigh a micro-batch by how many of the window's responses it holds."""
    share = len(micro.mask) * len(window.ranks) / window.sequences
    return by_response(micro).mean() * share


def mean_of_trained(micro: MicroBatch) -> Loss:
    """Return the mean over responses of which anything is trained on."""
    trained = micro.mask.any(1)
    return by_response(micro).sum() / trained.sum().clamp(min=1)


def over_micro_batches(micro: MicroBatch, window: Window) -> Loss:
    return mean_of_trained(micro) * len(window.ranks) / len(window.micro_batches)


def over_trained_responses(micro: MicroBatch, window: Window) -> Loss:
    count = int(window.rows.mask.any(1).sum())
    return by_response(micro).sum() * len(window.ranks) / count


def full_micro_batches(rank: tuple[MicroBatch, ...]) -> tuple[MicroBatch, ...]:
    """Return as many micro-batches as fit wholly into a rank's rows: one that is left over has no weight."""
    sizes = [len(micro.mask) for micro in rank]
    return rank[: sum(sizes) // sizes[0]]


def mean_of_full_micro_batches(window: Window) -> Loss:
    kept = [by_response(micro) for rank in window.ranks for micro in full_micro_batches(rank)]
    return torch.cat(kept).mean()


def mean_of_all_micro_batches(window: Window) -> Loss:
    return torch.cat([by_response(micro) for micro in window.micro_batches]).mean()


def of_update(update: Update) -> Check:
    return partition(update)


def of_step_in_equal_parts(step: Step) -> Check:
    """Try equal micro-batches alone: these trainers make no others."""
    return partition(accumulated(step), ways=layouts(example_rows(), even=True))


SPECIMENS = (
    Specimen("AGG-02", undeclared, over_tokens_of_rollout, over_tokens_of_window),
    Specimen("AGG-14", of_update, mean_of_full_micro_batches, mean_of_all_micro_batches),
    Specimen("AGG-17", undeclared, over_micro_batches, over_trained_responses),
    Specimen("GA-01", of_step_in_equal_parts, over_configured_steps, over_steps_taken),
    Specimen("GA-05", of_step_in_equal_parts, unscaled, over_steps_taken),
    Specimen("GA-06", undeclared, over_steps_taken, by_share_of_responses),
)
