"""Who is in a group, and whose advantage is whose: a wrong key, one member for all, advantages of other rows."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.audit.invariants.groups import group_semantics
from specimens.bench import Specimen
from specimens.group_boundaries import centred_by_id

Reward = Float[Tensor, " B"]
Ids = Int[Tensor, " B"]


def leave_one_out_by(reward: Reward, key: Ids) -> Reward:
    """Subtract the mean of the others with the same key; a lone response gets nothing."""
    same = (key[:, None] == key).to(reward.dtype)
    others = same.sum(1) - 1
    low = torch.where(same > 0, reward, float("inf")).amin(1)
    total = (same * (reward - low[:, None])).sum(1) - (reward - low)
    return torch.where(others > 0, reward - low - total / others.clamp(min=1), 0.0)


def keyed_by_prompt_tokens(reward: Reward, prompt_tokens: Int[Tensor, "B S"]) -> Reward:
    key = prompt_tokens.unique(dim=0, return_inverse=True)[1]
    return leave_one_out_by(reward, key)


def keyed_by_instance(reward: Reward, group: Ids) -> Reward:
    return leave_one_out_by(reward, group)


def statistics_of_the_first(reward: Reward, group: Ids) -> Reward:
    """Take the first rollout of a group for all of it."""
    made = torch.empty_like(reward)
    for name in set(group.tolist()):
        made[group == name] = reward[group == name] - reward[group == name][:1].mean()
    return made


def standardised_with_lone_ones_kept(reward: Reward, ids: Ids) -> Reward:
    """Standardise by id; a group of one has mean 0 and deviation 1."""
    made = reward.clone()
    for name in set(ids.tolist()):
        members = reward[ids == name]
        if len(members) > 1:
            made[ids == name] = (members - members.mean()) / (members.std() + 1e-4)
    return made


def an_id_for_each_row(reward: Reward, group: Ids) -> Reward:
    """Give every repeat of a prompt an id of its own."""
    return standardised_with_lone_ones_kept(reward, torch.arange(len(group)))


def an_id_for_each_prompt(reward: Reward, group: Ids) -> Reward:
    return standardised_with_lone_ones_kept(reward, group)


def rows_of_a_device(rows: Ids, device: int, parts: int) -> Ids:
    """Return a device's rows when each of some micro-batches is shared by two devices."""
    return torch.cat([part.tensor_split(2)[device] for part in rows.tensor_split(parts)])


def paired_across_shards(reward: Reward, group: Ids) -> Reward:
    """Shard advantages over the batch and log-probabilities within two micro-batches, and pair them by place."""
    advantage, rows = centred_by_id(reward, group), torch.arange(len(reward))
    made = torch.empty_like(reward)
    by_device = torch.cat([rows_of_a_device(rows, device, 2) for device in range(2)])
    made[by_device] = advantage
    return made


def paired_within_shards(reward: Reward, group: Ids) -> Reward:
    """Shard both within micro-batches."""
    advantage, rows = centred_by_id(reward, group), torch.arange(len(reward))
    made = torch.empty_like(reward)
    by_device = torch.cat([rows_of_a_device(rows, device, 2) for device in range(2)])
    made[by_device] = advantage[by_device]
    return made


SPECIMENS = (
    Specimen("ADV-05", group_semantics, keyed_by_prompt_tokens, keyed_by_instance),
    Specimen("X-01", group_semantics, statistics_of_the_first, centred_by_id),
    Specimen("X-02", group_semantics, an_id_for_each_row, an_id_for_each_prompt),
    Specimen("X-04", group_semantics, paired_across_shards, paired_within_shards),
)
