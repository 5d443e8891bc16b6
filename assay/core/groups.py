"""Sums, means and extremes over groups named by explicit ids; sizes may differ and rows come in any order."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.errors import InputError


def group_sum(values: Float[Tensor, " B"], group: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Return for each row the sum of the values of its group."""
    return values.new_zeros(int(group.max()) + 1).scatter_add(0, group, values)[group]


def group_size(group: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Return for each row the number of rows in its group."""
    return torch.bincount(group)[group]


def above_smallest(values: Float[Tensor, " B"], group: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Return each value minus the smallest of its group: exactly zero all over a constant group."""
    return values - _extreme(values, group, "amin")


def constant_groups(values: Float[Tensor, " B"], group: Int[Tensor, " B"]) -> Bool[Tensor, " B"]:
    """Return for each row whether all values of its group are equal, by ``max == min`` and not by a small deviation.

    A mean rounds, so a deviation computed from it can be 1e-17 where it should be zero, and dividing by it makes
    noise of order one. A group with a NaN is not constant.
    """
    return _extreme(values, group, "amax") == _extreme(values, group, "amin")


def require_pairs(group: Int[Tensor, " B"], what: str) -> None:
    """Raise InputError when a group has a single response, naming it and what needs two."""
    sizes = torch.bincount(group)
    if bool((sizes == 1).any()):
        alone = int((sizes == 1).nonzero()[0])
        raise InputError(f"group {alone} has 1 response: {what} needs at least 2 in every group")


def _extreme(values: Float[Tensor, " B"], group: Int[Tensor, " B"], reduce: str) -> Float[Tensor, " B"]:
    empty = values.new_zeros(int(group.max()) + 1)
    return empty.scatter_reduce(0, group, values, reduce, include_self=False)[group]
