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
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.advantages import leave_one_out
from assay.errors import AssayError
from assay.tree.world import World

Loss = Callable[..., Tensor]
NAMES = ("logp", "logp_old", "logp_ref", "reward", "adv", "mask", "group", "logits")
"""What a loss may ask for: ``logp``, ``logp_old``, ``logp_ref`` ``[B, T]``, ``reward``, ``adv`` ``[B]``,
``mask`` ``[B, T]``, ``group`` ``[B]``, ``logits`` ``[B, T, V]``; position t is the token being predicted."""
Group = tuple[int, Int[Tensor, " G"]]
"""A problem's number and its responses' numbers."""


class LossError(AssayError, ValueError):
    """A loss cannot be audited: it asks for what there is not, raises, or returns no finite scalar with a
    gradient."""


@dataclass(frozen=True)
class Batch:
    """One batch for a loss: groups of responses to problems of a world, padded to one length.

    Attributes:
        logits: of the trained policy along each response, ``[B, T, V]``; every gradient is taken here.
        chosen: the responses' tokens, ``[B, T]``.
        allowed: tokens the grammar allows at each position, ``[B, T, V]``.
        logp_old: log-probability of each token under the policy that sampled it.
        logp_ref: the same under the reference.
        reward: of each response.
        mask: 1.0 where a token belongs to the response.
        group: which group each row belongs to.
        padding: what ``logp``, ``logp_old`` and ``logp_ref`` hold where a response is over: trainers leave
            anything there.
    """

    logits: Float[Tensor, "B T V"]
    chosen: Int[Tensor, "B T"]
    allowed: Tensor
    logp_old: Float[Tensor, "B T"]
    logp_ref: Float[Tensor, "B T"]
    reward: Float[Tensor, " B"]
    mask: Float[Tensor, "B T"]
    group: Int[Tensor, " B"]
    padding: float = 0.0

    def take(self, rows: Int[Tensor, " R"]) -> Batch:
        """Return some rows in some order."""
        parts = {name: getattr(self, name)[rows] for name in _ROWS}
        return dataclasses.replace(self, **parts)


_ROWS = ("logits", "chosen", "allowed", "logp_old", "logp_ref", "reward", "mask", "group")


def make_batch(world: World, groups: list[Group]) -> Batch:
    """Return the batch of some groups, row after row."""
    rows = [(world[problem], members) for problem, members in groups]

    def rows_of(take: Callable[..., Tensor]) -> Tensor:
        return torch.cat([take(problem)[members] for problem, members in rows])

    numbers = [torch.full((len(members),), number) for number, (_, members) in enumerate(rows)]
    return Batch(
        logits=rows_of(lambda problem: problem.logits.detach()[problem.tree.states]),
        chosen=rows_of(lambda problem: problem.tree.responses),
        allowed=rows_of(lambda problem: problem.tree.allowed[problem.tree.states]),
        logp_old=rows_of(lambda problem: problem.tree.token_logp(problem.logits_old)),
        logp_ref=rows_of(lambda problem: problem.tree.token_logp(problem.logits_ref)),
        reward=rows_of(lambda problem: problem.reward),
        mask=rows_of(lambda problem: problem.tree.mask.double()),
        group=torch.cat(numbers),
    )


def wanted(loss: Loss) -> tuple[str, ...]:
    """Return the parameters that a loss asks for.

    Raises:
        LossError: it asks for one that there is not.
    """
    parameters = inspect.signature(loss).parameters.values()
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = tuple(p.name for p in parameters if p.kind in plain and p.default is inspect.Parameter.empty)
    optional = tuple(p.name for p in parameters if p.kind in plain and p.name in NAMES and p.name not in names)
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise LossError(f"the loss asks for {unknown[0]!r}; it can have {', '.join(NAMES)}")
    return names + optional


def slope(loss: Loss, batch: Batch) -> Float[Tensor, "B T V"]:
    """Call the loss on a batch and return its derivative by the policy's logits.

    Raises:
        LossError: it raises, or returns no finite scalar that depends on the policy.
    """
    names = wanted(loss)
    leaf = batch.logits.clone().requires_grad_()
    value = _call(loss, {name: made for name, made in _arguments(batch, leaf).items() if name in names})
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise LossError(f"the loss returned {shape}; it must return one scalar tensor to minimise")
    if not value.requires_grad:
        raise LossError("the loss has no gradient: it does not depend on logp or logits, or detaches them")
    if not bool(value.isfinite()):
        raise LossError(f"the loss is {float(value.detach())} on a batch of ordinary numbers")
    made: Tensor | None = torch.autograd.grad(value.sum(), leaf, allow_unused=True)[0]
    if made is None:
        raise LossError("the loss has no gradient: it does not depend on logp or logits, or detaches them")
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
    table = logits.masked_fill(~batch.allowed, float("-inf")).log_softmax(-1)
    logp = table.gather(-1, batch.chosen[..., None])[..., 0]
    over = batch.mask == 0
    return {
        "logp": logp.masked_fill(over, batch.padding),
        "logp_old": batch.logp_old.masked_fill(over, batch.padding),
        "logp_ref": batch.logp_ref.masked_fill(over, batch.padding),
        "reward": batch.reward.clone(),
        "adv": leave_one_out(batch.reward, batch.group),
        "mask": batch.mask.clone(),
        "group": batch.group.clone(),
        "logits": logits,
    }


def _call(loss: Loss, arguments: dict[str, Tensor]) -> Any:
    try:
        return loss(**arguments)
    except AssayError:
        raise
    except (Exception, SystemExit) as error:  # someone else's code: whatever it raises is a finding about it
        raise LossError(f"the loss raised {type(error).__name__}: {error}") from error


def _same(a: Any, b: Any) -> bool:
    return isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a.detach(), b.detach())


def _random_states() -> tuple[Any, ...]:
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), np.random.get_state(legacy=True)[1].tobytes()  # type: ignore[index]
