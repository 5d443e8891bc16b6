"""Calling an advantage function, and the small batches it is tried on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.audit.check import SubjectError
from assay.audit.invariants.byname import call_by_name, parameters_of

WHAT = "the advantage function"
NAMES = ("reward", "rewards", "returns", "group", "group_size", "prompt_tokens", "mask")
"""What an advantage function may ask for.

``reward [B]`` (or ``rewards``, ``returns``), ``group [B]`` (ids), ``group_size`` (what the trainer is set to),
``prompt_tokens [B, S]``, ``mask [B, T]``. One that asks for neither ``group`` nor ``prompt_tokens`` gets its rows group
after group."""
LENGTH = 3
"""Positions of ``mask``; responses have one, two or three tokens."""
Advantages = Float[Tensor, "B X"]


@dataclass(frozen=True)
class GroupedRewards:
    """A batch of rewards.

    Attributes:
        reward: one a response.
        group: id of the prompt instance that each response answers.
        prompt: the prompt's text as a number; two groups may share it.
        mask: 1.0 on a response's own tokens.
        size: of an ordinary group, as the trainer is set to.
    """

    reward: Float[Tensor, " B"]
    group: Int[Tensor, " B"]
    prompt: Int[Tensor, " B"]
    mask: Float[Tensor, "B T"]
    size: int

    def take(self, rows: Int[Tensor, " R"]) -> GroupedRewards:
        """Return some rows in some order."""
        parts = {name: getattr(self, name)[rows] for name in ("reward", "group", "prompt", "mask")}
        return replace(self, **parts)

    def groups(self) -> list[int]:
        """Return the ids, each once."""
        return sorted(set(self.group.tolist()))

    def alone(self, group: int) -> tuple[Int[Tensor, " G"], GroupedRewards]:
        """Return the rows of one group, and the batch of nothing else."""
        members = (self.group == group).nonzero()[:, 0]
        rows = self.take(members)
        return members, replace(rows, group=torch.zeros_like(rows.group), size=len(members))

    def place(self, row: int) -> str:
        """Return how a message names a row."""
        group = int(self.group[row])
        rewards = ", ".join(f"{reward:.3g}" for reward in self.reward[self.group == group].tolist())
        return f"row {row} (reward {float(self.reward[row]):.3g}, group {group} of [{rewards}])"


@dataclass(frozen=True)
class Advantage:
    """Someone's advantage function, called by parameter name."""

    function: Callable[..., Any]

    @property
    def by_order(self) -> bool:
        """Return whether it is told groups by their order and size alone."""
        return not {"group", "prompt_tokens"} & set(parameters_of(WHAT, self.function, dict.fromkeys(NAMES)))

    def __call__(self, rows: GroupedRewards) -> Advantages:
        """Return the advantages of a batch, zero where a token is masked; ``X`` is 1 for one a response.

        Raises:
            SubjectError: it raises, or returns anything but one row a reward.
        """
        offered = {
            "reward": rows.reward.clone(),
            "rewards": rows.reward.clone(),
            "returns": rows.reward.clone(),
            "group": rows.group.clone(),
            "group_size": rows.size,
            "prompt_tokens": torch.stack([rows.prompt, rows.prompt + 1], dim=1),
            "mask": rows.mask.to(rows.reward.dtype),
        }
        made = call_by_name(WHAT, self.function, offered)
        made = made[0] if isinstance(made, tuple) and made else made
        table = real_table(WHAT, made)
        if table.shape[:1] != rows.reward.shape or table.shape not in (rows.reward.shape, rows.mask.shape):
            raise SubjectError(f"{WHAT} returned shape {tuple(table.shape)} for {len(rows.reward)} rewards")
        return torch.where(rows.mask > 0, table, 0.0) if table.dim() > 1 else table[:, None]

    def tried(self, rows: GroupedRewards) -> Advantages | SubjectError:
        """Return the advantages of a batch, or how it was refused."""
        try:
            return self(rows)
        except SubjectError as refusal:
            return refusal


def real_table(what: str, made: Any) -> Float[Tensor, "*shape"]:
    """Return advantages as float64, whatever holds them.

    Raises:
        SubjectError: they are no real numbers in a tensor, an array or a list.
    """
    try:
        typed = isinstance(made, Tensor | np.ndarray)
        table = torch.as_tensor(made, dtype=None if typed else torch.float64).detach().cpu()
        if table.is_complex():
            raise TypeError("advantages are real")
        return table.double()
    except Exception as error:
        raise SubjectError(
            f"{what} returned {type(made).__name__}; it must return a tensor [B] of real numbers"
        ) from error


def value(table: Advantages, row: int) -> float:
    """Return what a message gives as a row's advantage: the largest of its tokens'."""
    values = table[row]
    return float(values[int(values.abs().nan_to_num(nan=float("inf")).argmax())])


def batch_of(rewards: list[list[float]], size: int, *, prompts: list[int] | None = None) -> GroupedRewards:
    """Return groups of given rewards, one after the other, in float64."""
    sizes = torch.tensor([len(group) for group in rewards])
    group = torch.arange(len(rewards)).repeat_interleave(sizes)
    prompt = torch.tensor(prompts or list(range(len(rewards))))[group]
    lengths = 1 + torch.arange(len(group)) % LENGTH
    mask = (torch.arange(LENGTH) < lengths[:, None]).double()
    return GroupedRewards(torch.tensor(sum(rewards, [])).double(), group, prompt, mask, size)


def mixed(count: int) -> Int[Tensor, " B"]:
    """Return an order of rows that tears every group apart."""
    backwards = torch.arange(count).flip(0)
    return torch.cat([backwards[1::2], backwards[::2]])


def batches(size: int, *, binary: bool, by_order: bool) -> dict[str, GroupedRewards]:
    """Return the batches that an advantage function is tried on, by name.

    Args:
        size: of an ordinary group.
        binary: whether rewards are 0 or 1 only.
        by_order: leave out what a function that is told no ids cannot tell apart.
    """
    levels = [[(0.13 + 0.37 * (3 * group + member)) % 1.0 for member in range(size)] for group in range(3)]
    if binary:
        success, failure = [1.0] + [0.0] * (size - 1), [0.0] + [1.0] * (size - 1)
        levels = [success, failure, success[::-1]]
    even = batch_of(levels, size)
    uneven = batch_of([levels[0], [1.0] * (size - 1), levels[2]], size)
    made = {
        "even groups": even,
        "uneven groups": uneven,
        "a member short": batch_of([levels[0][:-1], *levels[1:]], size),
        "a lone response": batch_of([levels[0], levels[1][:1]], size),
    }
    if by_order:
        return made
    made["interleaved rows"] = even.take(torch.arange(3 * size).view(3, size).T.flatten())
    made["uneven, in any order"] = uneven.take(mixed(len(uneven.reward)))
    made["a whole group gone"] = even.take((even.group != 1).nonzero()[:, 0])
    made["one text asked twice"] = batch_of([[0.0] * size, [1.0] * size, levels[0]], size, prompts=[0, 0, 1])
    return made
