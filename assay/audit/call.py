"""Calling someone's loss: by parameter name, with tensors of a batch from a world, and never trusting what it
does to them."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.audit.check import SubjectError, derivative, foreign
from assay.audit.precision import Precisions
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
``logits_old``, ``logits_ref``: ``[B, T, V]``. Position t is the token being predicted; ``logp`` and ``logits`` carry
the gradient."""
Group = tuple[int, Int[Tensor, " _"]]
"""A problem's number and its responses' numbers."""


class NotFiniteError(SubjectError):
    """A loss, or its gradient, is not finite on a batch that can be drawn."""


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
        present: where there is a token at all; the mask and the tokens of an environment together.
        padding: what ``logp`` and ``value`` hold under the mask, each its own number from here on: trainers leave
            anything there. None leaves the policy's word on an environment's tokens, and 0 where a response is over.
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
    present: Bool[Tensor, "B T"]
    padding: float | None = None

    def take(self, rows: Int[Tensor, " R"]) -> Batch:
        """Return some rows in some order."""
        parts = {name: getattr(self, name)[rows] for name in _ROWS}
        return dataclasses.replace(self, **parts)


_ROWS = tuple(entry.name for entry in dataclasses.fields(Batch) if entry.name != "padding")


def whole_batch(world: World) -> Batch:
    """Return every response to every problem of a world, one group a problem, padded to one length."""
    longest = max(problem.tree.path.shape[1] for problem in world)

    def rows_of(take: Callable[[TreeProblem], Tensor]) -> Tensor:
        return torch.cat([take(problem) for problem in world])

    def along(take: Callable[[TreeProblem], Tensor]) -> Tensor:
        return rows_of(lambda problem: _widened(take(problem), longest))

    def at_states(take: Callable[[TreeProblem], Tensor]) -> Tensor:
        return along(lambda problem: take(problem).detach()[problem.tree.states])

    sizes = torch.tensor([len(problem.tree.path) for problem in world])
    return Batch(
        logits=at_states(lambda problem: problem.logits),
        logits_old=at_states(lambda problem: problem.logits_old),
        logits_ref=at_states(lambda problem: problem.logits_ref),
        logits_sampler=at_states(lambda problem: problem.draws),
        tokens=along(lambda problem: problem.tree.responses),
        scored=at_states(lambda problem: problem.scored),
        reward=rows_of(lambda problem: problem.reward),
        mask=along(lambda problem: problem.mask.double()),
        group=torch.arange(len(world)).repeat_interleave(sizes),
        truncated=rows_of(lambda problem: problem.tree.truncated),
        value=at_states(lambda problem: problem.value),
        present=along(lambda problem: problem.tree.mask),
    )


def row_starts(world: World) -> list[int]:
    """Return where each problem's responses begin in :func:`whole_batch`."""
    return [0, *itertools.accumulate(len(problem.tree.path) for problem in world)][:-1]


def _widened(tensor: Tensor, length: int) -> Tensor:
    """Return a tensor ``[M, T, ...]`` padded to a length."""
    missing = length - tensor.shape[1]
    if not missing:
        return tensor
    filler = torch.ones_like if tensor.dtype is torch.bool and tensor.ndim == 3 else torch.zeros_like
    return torch.cat([tensor, filler(tensor[:, :1]).expand(-1, missing, *tensor.shape[2:])], dim=1)


def make_batch(world: World, groups: list[Group]) -> Batch:
    """Return the batch of some groups, row after row."""
    starts = row_starts(world)
    rows = torch.cat([starts[problem] + members for problem, members in groups])
    sizes = torch.tensor([len(members) for _, members in groups])
    numbers = torch.arange(len(groups)).repeat_interleave(sizes)
    return dataclasses.replace(whole_batch(world).take(rows), group=numbers)


def with_advantage(loss: Loss, advantage: Loss) -> Loss:
    """Return a loss whose ``adv`` comes from an advantage function instead, called by parameter name as well."""
    inner, outer = wanted(advantage), tuple(name for name in wanted(loss) if name != "adv")

    def combined(given: dict[str, Tensor]) -> Tensor:
        adv = foreign("the advantage function", advantage, **{name: given[name] for name in inner})
        if not isinstance(adv, Tensor) or adv.shape[:1] != given["group"].shape:
            shape = tuple(adv.shape) if isinstance(adv, Tensor) else type(adv).__name__
            raise SubjectError(f"the advantage function returned {shape}; it must return one number a response")
        rest = {name: given[name] for name in outer}
        value: Tensor = loss(**rest, adv=adv)
        return value

    return asking_for(dict.fromkeys((*outer, *inner, "group")), combined)


def asking_for(names: Iterable[str], loss: Callable[[dict[str, Tensor]], Tensor]) -> Loss:
    """Return a loss that asks for these parameters by name and gets them as one dictionary."""

    def named(**given: Tensor) -> Tensor:
        return loss(given)

    kind = inspect.Parameter.KEYWORD_ONLY
    named.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    return named


def wanted(loss: Loss) -> tuple[str, ...]:
    """Return the parameters that a loss asks for.

    Raises:
        SubjectError: it asks for one that there is not, or does not say what it takes.
    """
    try:
        called = loss.forward if isinstance(loss, torch.nn.Module) else loss
        parameters = inspect.signature(called).parameters.values()
    except Exception as error:  # its own code may run: a signature, a repr
        raise SubjectError(f"the loss does not say what it takes ({error}); wrap it in a function that does") from error
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = tuple(p.name for p in parameters if p.kind in plain and p.default is inspect.Parameter.empty)
    optional = tuple(p.name for p in parameters if p.kind in plain and p.name in NAMES and p.name not in names)
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise SubjectError(f"the loss asks for {unknown[0]!r}; it can have {', '.join(NAMES)}")
    return names + optional


def touches_logits(loss: Loss) -> bool:
    """Return whether a loss reads the policy's logits, and not its log-probabilities alone."""
    return "logits" in wanted(loss)


def slope(loss: Loss, batch: Batch) -> Float[Tensor, "B T V"]:
    """Call the loss on a batch and return its derivative by the policy's logits.

    Raises:
        SubjectError: it raises, or returns no finite scalar that depends on the policy.
    """
    leaf = batch.logits.clone().requires_grad_()
    return finite(derivative_by(leaf, loss, arguments(loss, batch, leaf)))


def logp_slope(loss: Loss, batch: Batch) -> Float[Tensor, "B T"]:
    """Call a loss that reads no logits and return its derivative by ``logp``, masked positions included.

    Raises:
        SubjectError: as :func:`slope`.
    """
    given = arguments(loss, batch, batch.logits)
    if "logp" not in given:
        raise SubjectError("the loss asks for neither logp nor logits: it cannot depend on the policy")
    leaf = given["logp"].clone().requires_grad_()
    return derivative_by(leaf, loss, {**given, "logp": leaf})


def finite(made: Tensor) -> Tensor:
    """Return a derivative, or refuse it.

    Raises:
        NotFiniteError: an entry is infinite or NaN.
    """
    if not bool(made.isfinite().all()):
        raise NotFiniteError("the loss has a gradient that is not finite on a batch that can be drawn")
    return made


def derivative_by(leaf: Tensor, loss: Loss, given: dict[str, Tensor]) -> Tensor:
    """Call a loss with some arguments and differentiate it by one of them.

    Raises:
        SubjectError: as :func:`slope`.
    """
    value = foreign("the loss", loss, **given)
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise SubjectError(f"the loss returned {shape}; it must return one scalar tensor to minimise")
    if value.is_complex():
        raise SubjectError("the loss returned a complex number; it must return one real scalar to minimise")
    if not value.requires_grad:
        raise SubjectError("the loss has no gradient: it does not depend on logp or logits, or detaches them")
    if not bool(value.isfinite()):
        raise NotFiniteError(f"the loss is {float(value.detach())} on a batch that can be drawn")
    (made,) = derivative("the loss", value, (leaf,))
    if made is None:
        raise SubjectError("the loss has no gradient: it does not depend on logp or logits, or detaches them")
    return made


@dataclass(frozen=True)
class Conduct:
    """What a loss does besides returning a value.

    Attributes:
        repeats: whether it returned the same value and gradient when called again.
        faults: changed inputs and draws from a global random number generator.
        coarsest: least precise floating type that it computed in.
    """

    repeats: bool
    faults: tuple[str, ...]
    coarsest: torch.dtype


def conduct(loss: Loss, batch: Batch) -> Conduct:
    """Call a loss twice and return what it does to its inputs, to global random numbers, and in which precision."""
    leaf = batch.logits.clone().requires_grad_()
    given = arguments(loss, batch, leaf)
    before = {name: made.detach().clone() for name, made in given.items()}
    states = _random_states()
    with Precisions() as seen:
        first = foreign("the loss", loss, **given)
    faults = [f"it changes its input {name}" for name, made in given.items() if not _same(made, before[name])]
    if _random_states() != states:
        faults.append("it draws from a global random number generator")
    again = foreign("the loss", loss, **{name: made.clone() for name, made in before.items()})
    repeats = _same(first, again)
    if repeats and not faults:
        repeats = _same(slope(loss, batch), slope(loss, batch))
    return Conduct(repeats, tuple(faults), seen.coarsest)


def arguments(function: Callable[..., Any], batch: Batch, logits: Float[Tensor, "B T V"]) -> dict[str, Tensor]:
    """Return what a function asks for of a batch; ``logp`` and ``logits`` carry the gradient of ``logits``."""
    return columns(wanted(function), batch, logits)


def columns(names: Sequence[str], batch: Batch, logits: Float[Tensor, "B T V"]) -> dict[str, Tensor]:
    """Return some of what there is of a batch, by name."""
    hidden = ~batch.present if batch.padding is None else batch.mask == 0

    def covered(values: Float[Tensor, "B T"], place: int) -> Float[Tensor, "B T"]:
        return values.masked_fill(hidden, 0.0 if batch.padding is None else batch.padding + place)

    def logp(table: Float[Tensor, "B T V"], place: int) -> Float[Tensor, "B T"]:
        normalised = table.masked_fill(~batch.scored, float("-inf")).log_softmax(-1)
        return covered(normalised.gather(-1, batch.tokens[..., None])[..., 0], place)

    def leave_one_out_of_reward() -> Float[Tensor, " B"]:
        return foreign("leave-one-out, which makes adv,", leave_one_out, batch.reward, batch.group)  # type: ignore[no-any-return]

    offered: dict[str, Callable[[], Tensor]] = {
        "logp": lambda: logp(logits, 0),
        "logp_old": lambda: logp(batch.logits_old, 1),
        "logp_ref": lambda: logp(batch.logits_ref, 2),
        "logp_sampler": lambda: logp(batch.logits_sampler, 3),
        "reward": batch.reward.clone,
        "adv": leave_one_out_of_reward,
        "mask": batch.mask.clone,
        "group": batch.group.clone,
        "truncated": batch.truncated.clone,
        "value": lambda: covered(batch.value, 4),
        "tokens": batch.tokens.clone,
        "logits": lambda: logits,
        "logits_old": batch.logits_old.clone,
        "logits_ref": batch.logits_ref.clone,
    }
    return {name: offered[name]() for name in names}


def _same(a: Any, b: Any) -> bool:
    return isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a.detach(), b.detach())


def _random_states() -> tuple[Any, ...]:
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), np.random.get_state(legacy=True)[1].tobytes()  # type: ignore[index]
