"""Calling someone's loss: by parameter name, with tensors of a batch from a world, and never trusting what it
does to them."""

from __future__ import annotations

import dataclasses
import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.audit.check import SubjectError, foreign
from assay.core.advantages import leave_one_out
from assay.tree.world import TreeProblem, World

Loss = Callable[..., Tensor]
NAMES = (
    "logp",
    "logp_old",
    "logp_ref",
    "logp_sampler",
    "reward",
    "adv",
    "mask",
    "group",
    "truncated",
    "value",
    "tokens",
    "logits",
    "logits_old",
    "logits_ref",
)
"""What a loss may ask for.

``logp``, ``logp_old`` (the policy when the update began), ``logp_ref``, ``logp_sampler`` (what drew the responses),
``mask`` (1.0 where a token was sampled), ``value`` (a critic's say before each token), ``tokens``: ``[B, T]``;
``reward``, ``adv`` (leave-one-out of the reward), ``group``, ``truncated``: ``[B]``; at the wider boundary ``logits``,
``logits_old``, ``logits_ref``: ``[B, T, V]``. Position t is the token being predicted; ``logp`` and ``logits`` carry the
gradient."""
Group = tuple[int, Int[Tensor, " G"]]
"""A problem's number and its responses' numbers."""


@dataclass(frozen=True)
class Batch:
    """One batch for a loss: groups of responses to problems of a world, padded to one length.

    Attributes:
        logits: of the trained policy along each response, ``[B, T, V]``; every gradient is taken here.
        logits_old: the same of the policy when the update began.
        logits_ref: of the reference.
        logits_sampler: of what drew the responses.
        tokens: of the responses, ``[B, T]``.
        scored: tokens that log-probabilities are normalised over, ``[B, T, V]``.
        reward: of each response.
        mask: 1.0 where the policy chose the token.
        group: which group each row belongs to.
        truncated: whether a response stopped at the longest length.
        value: a critic's say before each token, ``[B, T]``.
        padding: what every ``logp`` and ``value`` holds where a response is over: trainers leave anything there.
    """

    logits: Float[Tensor, "B T V"]
    logits_old: Float[Tensor, "B T V"]
    logits_ref: Float[Tensor, "B T V"]
    logits_sampler: Float[Tensor, "B T V"]
    tokens: Int[Tensor, "B T"]
    scored: Bool[Tensor, "B T V"]
    reward: Float[Tensor, " B"]
    mask: Float[Tensor, "B T"]
    group: Int[Tensor, " B"]
    truncated: Bool[Tensor, " B"]
    value: Float[Tensor, "B T"]
    padding: float = 0.0

    def take(self, rows: Int[Tensor, " R"]) -> Batch:
        """Return some rows in some order."""
        parts = {name: getattr(self, name)[rows] for name in _ROWS}
        return dataclasses.replace(self, **parts)


_ROWS = tuple(entry.name for entry in dataclasses.fields(Batch) if entry.name != "padding")


def make_batch(world: World, groups: list[Group]) -> Batch:
    """Return the batch of some groups, row after row."""
    rows = [(world[problem], members) for problem, members in groups]

    def rows_of(take: Callable[[TreeProblem], Tensor]) -> Tensor:
        return torch.cat([take(problem)[members] for problem, members in rows])

    def along(take: Callable[[TreeProblem], Tensor]) -> Tensor:
        return rows_of(lambda problem: take(problem).detach()[problem.tree.states])

    numbers = [torch.full((len(members),), number) for number, (_, members) in enumerate(rows)]
    return Batch(
        logits=along(lambda problem: problem.logits),
        logits_old=along(lambda problem: problem.logits_old),
        logits_ref=along(lambda problem: problem.logits_ref),
        logits_sampler=along(lambda problem: problem.draws),
        tokens=rows_of(lambda problem: problem.tree.responses),
        scored=along(lambda problem: problem.scored),
        reward=rows_of(lambda problem: problem.reward),
        mask=rows_of(lambda problem: problem.mask.double()),
        group=torch.cat(numbers),
        truncated=rows_of(lambda problem: problem.tree.truncated),
        value=along(lambda problem: problem.value),
    )


def wanted(loss: Loss) -> tuple[str, ...]:
    """Return the parameters that a loss asks for.

    Raises:
        SubjectError: it asks for one that there is not.
    """
    parameters = inspect.signature(loss).parameters.values()
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = tuple(p.name for p in parameters if p.kind in plain and p.default is inspect.Parameter.empty)
    optional = tuple(p.name for p in parameters if p.kind in plain and p.name in NAMES and p.name not in names)
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise SubjectError(f"the loss asks for {unknown[0]!r}; it can have {', '.join(NAMES)}")
    return names + optional


def slope(loss: Loss, batch: Batch) -> Float[Tensor, "B T V"]:
    """Call the loss on a batch and return its derivative by the policy's logits.

    Raises:
        SubjectError: it raises, or returns no finite scalar that depends on the policy.
    """
    names = wanted(loss)
    leaf = batch.logits.clone().requires_grad_()
    value = _call(loss, {name: made for name, made in _arguments(batch, leaf).items() if name in names})
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise SubjectError(f"the loss returned {shape}; it must return one scalar tensor to minimise")
    if not value.requires_grad:
        raise SubjectError("the loss has no gradient: it does not depend on logp or logits, or detaches them")
    if not bool(value.isfinite()):
        raise SubjectError(f"the loss is {float(value.detach())} on a batch of ordinary numbers")
    made: Tensor | None = torch.autograd.grad(value.sum(), leaf, allow_unused=True)[0]
    if made is None:
        raise SubjectError("the loss has no gradient: it does not depend on logp or logits, or detaches them")
    return made


def side_effects(loss: Loss, batch: Batch) -> list[str]:
    """Call the loss twice and return what it should not do: change its inputs, draw random numbers, differ from
    itself."""
    arguments = _arguments(batch, batch.logits.clone().requires_grad_())
    given = {name: made for name, made in arguments.items() if name in wanted(loss)}
    before = {name: made.detach().clone() for name, made in given.items()}
    states = _random_states()
    first = _call(loss, given)
    found = [f"it changes its input {name}" for name, made in given.items() if not _same(made, before[name])]
    if _random_states() != states:
        found.append("it draws from a global random number generator")
    if not _same(first, _call(loss, {name: made.clone() for name, made in before.items()})):
        found.append("it returns another value when called again with the same inputs")
    return found


def _arguments(batch: Batch, logits: Float[Tensor, "B T V"]) -> dict[str, Tensor]:
    """Return everything a loss can ask for; ``logp`` and ``logits`` carry the gradient."""
    over = batch.mask == 0

    def logp(table: Float[Tensor, "B T V"]) -> Float[Tensor, "B T"]:
        normalised = table.masked_fill(~batch.scored, float("-inf")).log_softmax(-1)
        return normalised.gather(-1, batch.tokens[..., None])[..., 0].masked_fill(over, batch.padding)

    return {
        "logp": logp(logits),
        "logp_old": logp(batch.logits_old),
        "logp_ref": logp(batch.logits_ref),
        "logp_sampler": logp(batch.logits_sampler),
        "reward": batch.reward.clone(),
        "adv": leave_one_out(batch.reward, batch.group),
        "mask": batch.mask.clone(),
        "group": batch.group.clone(),
        "truncated": batch.truncated.clone(),
        "value": batch.value.masked_fill(over, batch.padding),
        "tokens": batch.tokens.clone(),
        "logits": logits,
        "logits_old": batch.logits_old.clone(),
        "logits_ref": batch.logits_ref.clone(),
    }


def _call(loss: Loss, arguments: dict[str, Tensor]) -> Any:
    return foreign("the loss", loss, **arguments)


def _same(a: Any, b: Any) -> bool:
    return isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a.detach(), b.detach())


def _random_states() -> tuple[Any, ...]:
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), np.random.get_state(legacy=True)[1].tobytes()  # type: ignore[index]
