"""Groups read off a shape or an order, where only their ids say who belongs together."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.audit.invariants.groups import group_semantics
from specimens.bench import Specimen

Reward = Float[Tensor, " B"]
Ids = Int[Tensor, " B"]


def earlier(group: Ids) -> Ids:
    """Return how many earlier rows each row's group has."""
    return (group[:, None] == group).tril(-1).sum(1)


def blocked(group: Ids) -> Ids:
    """Order rows as p1, p1, ..., p2, p2, ..."""
    return (group * len(group) + earlier(group)).argsort()


def tiled(group: Ids) -> Ids:
    """Order rows as p1, p2, ..., p1, p2, ..."""
    return (earlier(group) * (int(group.max()) + 1) + group).argsort()


def in_order(reward: Reward, order: Ids, advantage: Callable[[Reward], Reward]) -> Reward:
    """Compute advantages with the rows in some order, and bring them back."""
    made = torch.empty_like(reward)
    made[order] = advantage(reward[order])
    return made


def centred_windows(reward: Reward, size: int) -> Reward:
    """Centre each consecutive window; a rest that fills none stays as it is."""
    full = len(reward) // size * size
    table = reward[:full].view(-1, size)
    return torch.cat([(table - table.mean(1, keepdim=True)).flatten(), reward[full:]])


def standardised_table(reward: Reward, size: int) -> Reward:
    """Standardise each row of a table of groups; torch refuses a count that fills none."""
    table = reward.view(-1, size)
    return ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)).flatten()


def centred_by_id(reward: Reward, group: Ids) -> Reward:
    made = torch.empty_like(reward)
    for name in set(group.tolist()):
        made[group == name] = reward[group == name] - reward[group == name].mean()
    return made


def one_row_when_counts_differ(reward: Reward, group: Ids, group_size: int) -> Reward:
    """View rewards as prompts by samples where the count allows it, and as a single row where not."""
    prompts = len(set(group.tolist()))
    width = group_size if len(reward) == prompts * group_size else len(reward)
    return in_order(reward, blocked(group), lambda rows: centred_windows(rows, width))


def fixed_stride(reward: Reward, group: Ids, group_size: int) -> Reward:
    """Take every ``group_size`` rows for a group, though one may have lost a member."""
    return in_order(reward, blocked(group), lambda rows: centred_windows(rows, group_size))


def windows_of_tiled_prompts(reward: Reward, group: Ids, group_size: int) -> Reward:
    return in_order(reward, tiled(group), lambda rows: centred_windows(rows, group_size))


def table_of_tiled_completions(reward: Reward, group: Ids, group_size: int) -> Reward:
    return in_order(reward, tiled(group), lambda rows: standardised_table(rows, group_size))


def table_of_repeated_completions(reward: Reward, group: Ids, group_size: int) -> Reward:
    if bool((group.bincount()[group] != group_size).any()):
        raise ValueError(f"a group has other than {group_size} completions")
    return in_order(reward, blocked(group), lambda rows: standardised_table(rows, group_size))


def windows_within_each_rank(reward: Reward, group: Ids, group_size: int) -> Reward:
    """Deal rows to two ranks in turn; each centres windows of what it got."""
    made = torch.empty_like(reward)
    for rank in range(2):
        rows = blocked(group)[rank::2]
        made[rows] = centred_windows(reward[rows], group_size)
    return made


def windows_after_gathering(reward: Reward, group: Ids, group_size: int) -> Reward:
    """Gather what two ranks hold, and insist that each window has one prompt."""
    rows = blocked(group)
    if len(rows) % group_size or bool(group[rows].view(-1, group_size).diff(dim=1).any()):
        raise ValueError(f"a window of {group_size} rows holds more than one prompt")
    return in_order(reward, rows, lambda some: centred_windows(some, group_size))


SPECIMENS = (
    Specimen("ADV-01", group_semantics, one_row_when_counts_differ, centred_by_id),
    Specimen("ADV-02", group_semantics, fixed_stride, centred_by_id),
    Specimen("ADV-08", group_semantics, windows_of_tiled_prompts, centred_by_id),
    Specimen("ADV-09", group_semantics, windows_within_each_rank, windows_after_gathering),
    Specimen("X-03", group_semantics, table_of_tiled_completions, table_of_repeated_completions),
)
