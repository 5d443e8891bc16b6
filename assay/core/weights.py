"""Weights: how the terms of a loss are averaged. Counts are arguments, so no split of a batch can change them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.masking import token_counts
from assay.errors import InputError


@dataclass(frozen=True)
class Totals:
    """What a whole batch counts, however it is split over micro-batches and ranks.

    Attributes:
        responses: rows that count.
        tokens: tokens that count, of all rows together.
        groups: groups with a row that counts.
        group_tokens: tokens that count of each group, by id.
    """

    responses: int
    tokens: int
    groups: int
    group_tokens: Int[Tensor, " groups"]


def totals(mask: Bool[Tensor, "B T"], group: Int[Tensor, " B"]) -> Totals:
    """Count a whole batch. Each count is at least 1, so that a batch in which nothing counts weighs nothing."""
    lengths = mask.sum(1)
    group_tokens = torch.zeros(int(group.max()) + 1, dtype=torch.long, device=mask.device).index_add(0, group, lengths)
    responses, tokens, groups = int((lengths > 0).sum()), int(lengths.sum()), int((group_tokens > 0).sum())
    return Totals(max(responses, 1), max(tokens, 1), max(groups, 1), group_tokens)


def sequence_mean(rows: int, *, total: int, dtype: torch.dtype = torch.float32) -> Float[Tensor, " rows"]:
    """Return weights ``1 / total`` for ``rows`` responses of a batch of ``total``.

    Args:
        rows: responses at hand, perhaps one micro-batch of several.
        total: responses in the whole batch.
        dtype: of the weights.
    """
    return torch.full((rows,), 1.0 / total, dtype=dtype)


def trajectory_mass(logp: Float[Tensor, "P M"]) -> Float[Tensor, "P M"]:
    """Return weights ``sg[p(y)] / P``: the exact expectation over M trajectories, averaged over P problems.

    The exact counterpart of :func:`sequence_mean`: a mean over samples estimates what these weights compute.

    Args:
        logp: log-probability of every trajectory of every problem.
    """
    return logp.detach().exp() / len(logp)


def token_sum(mask: Bool[Tensor, "B T"], *, responses: int, dtype: torch.dtype = torch.float32) -> Float[Tensor, "B T"]:
    """Return the weights of a mean over responses of sums over tokens: ``1 / responses`` at every token that counts.

    The only one of these under which the score of a response is whole: with it, REINFORCE with a baseline that excludes
    its own response is unbiased.

    Args:
        mask: true at the tokens that count.
        responses: in the whole batch.
        dtype: of the weights.
    """
    return mask.to(dtype) / _positive("responses", responses)


def token_mean(
    mask: Bool[Tensor, "B T"], *, responses: int, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "B T"]:
    """Return the weights of a mean over responses of means over their tokens: ``1 / (responses n_i)``.

    Divides each score by its response's length: ``E[(1/G) Σ_i A_i ∇logp_i / n_i]`` has curl where lengths differ, so it
    is the gradient of nothing. Long wrong responses are pushed down less a token than short ones.

    Source: Shao et al., "DeepSeekMath" (GRPO), 2024.

    Args:
        mask: true at the tokens that count.
        responses: in the whole batch.
        dtype: of the weights.
    """
    return mask.to(dtype) / token_counts(mask) / _positive("responses", responses)


def global_token_mean(
    mask: Bool[Tensor, "B T"], *, tokens: int, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "B T"]:
    """Return the weights of a mean over all tokens of the batch: ``1 / tokens``.

    A ratio of two random sums: biased in a small batch, where the count depends on the responses. As the batch
    grows the count concentrates, and what remains is the gradient under :func:`token_sum` over the expected length.

    Source: Yu et al., "DAPO", 2025.

    Args:
        mask: true at the tokens that count.
        tokens: in the whole batch, over every micro-batch and rank.
        dtype: of the weights.
    """
    return mask.to(dtype) / _positive("tokens", tokens)


def constant_length(
    mask: Bool[Tensor, "B T"], *, responses: int, length: int, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "B T"]:
    """Return the weights ``1 / (responses length)`` with one length for all: :func:`token_sum` over a constant.

    Source: Liu et al., "Understanding R1-Zero-like training: a critical perspective" (Dr.GRPO), 2025.

    Args:
        mask: true at the tokens that count.
        responses: in the whole batch.
        length: the constant, such as the longest length that is sampled; not the width of a padded batch.
        dtype: of the weights.
    """
    return token_sum(mask, responses=responses, dtype=dtype) / _positive("length", length)


def group_token_mean(
    mask: Bool[Tensor, "B T"],
    group: Int[Tensor, " B"],
    *,
    group_tokens: Int[Tensor, " groups"],
    groups: int,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "B T"]:
    """Return the weights of a mean over groups of means over a group's tokens: ``1 / (groups tokens of the group)``.

    As :func:`global_token_mean`, and a group of long responses weighs no more than one of short ones.

    Args:
        mask: true at the tokens that count.
        group: the group each row belongs to.
        group_tokens: tokens of each group in the whole batch, by id.
        groups: in the whole batch.
        dtype: of the weights.
    """
    return mask.to(dtype) / group_tokens[group].clamp(min=1)[:, None] / _positive("groups", groups)


def _positive(name: str, count: int) -> int:
    if count < 1:
        raise InputError(f"{name} = {count}: a mean needs the count of the whole batch, at least 1")
    return count
