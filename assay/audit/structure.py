"""What must hold of a loss on every batch: masked positions are inert, order and sizes of groups do not matter, and a
batch is the mean of its groups. It is checked on one batch with short and long, right and wrong responses in it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.call import Batch, Group, Loss, logp_slope, make_batch, slope, touches_logits
from assay.audit.check import Check, SubjectError, relative_gap, verdict_of
from assay.audit.question import Question
from assay.tree.world import World
from assay.verdicts import Claim, Verdict

PADDINGS = (7.0, float("nan"))


def typical_groups(world: World, sizes: tuple[int, ...]) -> list[Group]:
    """Return one group of each problem: short responses of the first, long ones of the next, of unequal rewards."""
    groups = []
    for number, (problem, size) in enumerate(zip(world, sizes, strict=True)):
        order = problem.drawn[problem.tree.lengths[problem.drawn].argsort(stable=True)]
        last = len(order) - 1
        places = torch.arange(size) * last // (2 * max(size - 1, 1))  # the shorter half
        members = order[places if number % 2 == 0 else last - places]
        members[-1] = order[(problem.reward[order] - problem.reward[members[0]]).abs().argmax()]
        groups.append((number, members))
    return groups


def structure(question: Question, whole: Batch, base: Float[Tensor, "B T V"]) -> list[Claim]:
    """Check what must hold on every batch, on one with several lengths."""
    function, tolerance = question.loss, question.tolerance
    order = torch.arange(len(whole.reward)).flip(0).roll(1)
    shuffled = "rows in another order, with their group ids, give each row the same gradient"
    claims: list[Claim] = [
        _masked_positions_are_inert(question, whole, base),
        _compared(
            "I4", shuffled, lambda: slope(function, whole.take(order)), base[order], whole.take(order), tolerance
        ),
    ]
    uneven = _uneven_groups(question)
    if claims[1].verdict is Verdict.HOLDS and uneven is not None:
        claims[1] = uneven
    if min(question.design.sizes) > 1 and len(question.world) > 1:
        claims.append(_partition(question, whole, base))
    return claims


def _partition(question: Question, whole: Batch, base: Float[Tensor, "B T V"]) -> Claim:
    """I2: a batch of groups is the mean of its groups, one whose rewards are all equal among them."""
    groups = typical_groups(question.world, question.design.sizes)

    def alone(some: list[Group]) -> Tensor:
        return torch.cat([slope(question.loss, make_batch(question.world, [group])) for group in some]) / len(some)

    split = "a batch of groups gives the mean of its groups' gradients"
    remedy = "use the ids in group, and divide by counts of the whole batch, not of the rows at hand"
    found = _compared("I2", split, functools.partial(alone, groups), base, whole, question.tolerance)
    if found.verdict is Verdict.HOLDS:
        number, members = groups[0]
        constant = [(number, members[:1].repeat(len(members))), *groups[1:]]
        batch = make_batch(question.world, constant)
        try:
            made, expected = alone(constant), slope(question.loss, batch)
        except SubjectError:
            return found  # it refuses a group without signal, or has no gradient there
        found = _compared("I2", split, lambda: made, expected, batch, question.tolerance)
    return found if found.verdict is Verdict.HOLDS else dataclasses.replace(found, remedy=remedy)


def _uneven_groups(question: Question) -> Claim | None:
    """I4: groups of different sizes in one batch each get a multiple of what they get alone; None where they do, or
    where the loss refuses them."""
    if len(question.world) < 2 or min(question.design.sizes) < 2:
        return None
    sizes = tuple(size + number % 2 for number, size in enumerate(question.design.sizes))
    groups = typical_groups(question.world, sizes)
    whole = make_batch(question.world, groups)
    try:
        together = torch.split(slope(question.loss, whole), list(sizes))
        alone = [slope(question.loss, make_batch(question.world, [group])) for group in groups]
    except SubjectError:
        return None
    for number, (made, own) in enumerate(zip(together, alone, strict=True)):
        size = float(own.square().sum())
        factor = float((made * own).sum()) / size if size else 1.0
        if factor <= 0 or not relative_gap(made, factor * own) <= question.tolerance:
            finding = (
                f"groups of {' and '.join(map(str, sizes))} responses in one batch: what group {number} gets is no "
                "positive multiple of what it gets alone"
            )
            detail = "groups of different sizes are told apart by their ids"
            return verdict_of("I4", detail, (finding,), remedy="take each group's rows, and their number, from group")
    return None


def _masked_positions_are_inert(question: Question, whole: Batch, base: Float[Tensor, "B T V"]) -> Claim:
    """I3: what stands under the mask, and how far the batch is padded, changes nothing and gets no gradient."""
    detail = "values under the mask, NaN included, and more padding change no gradient; nothing is pushed there"
    remedy = "select with the mask (torch.where) before any arithmetic: NaN * 0 is NaN"
    variants = {f"{value} under the mask": dataclasses.replace(whole, padding=value) for value in PADDINGS}
    variants["other logits and tokens under the mask"] = _disturbed(whole)
    variants["one more padded position"] = _wider(whole)
    kept = whole.mask[..., None]
    for name, batch in variants.items():
        made = functools.partial(_kept, question.loss, batch, kept)
        found = _compared("I3", detail, made, base * kept, whole, question.tolerance)
        if found.verdict is not Verdict.HOLDS:
            findings = tuple(f"with {name}: {line}" for line in found.findings)
            return dataclasses.replace(found, findings=findings, remedy=remedy)
    pushed = _pushed_under_the_mask(question.loss, whole)
    if pushed is not None:
        return verdict_of(
            "I3", detail, (pushed,), tolerance=question.tolerance, remedy="multiply each term by the mask"
        )
    return verdict_of("I3", detail, tolerance=question.tolerance)


def _pushed_under_the_mask(function: Loss, whole: Batch) -> str | None:
    """Return the masked position that a loss differentiates most, if there is one."""
    batch = dataclasses.replace(whole, padding=PADDINGS[0])
    made = slope(function, batch) if touches_logits(function) else logp_slope(function, batch)[..., None]
    under = (made * (1 - whole.mask)[..., None]).abs().amax(-1)
    if not float(under.max()) > 0:
        return None
    row, position = divmod(int(under.argmax()), under.shape[1])
    return f"row {row}, position {position} is masked, and the loss has derivative {float(under.max()):.3g} there"


def _kept(function: Loss, batch: Batch, kept: Float[Tensor, "B T 1"]) -> Float[Tensor, "B T V"]:
    """Return a loss's derivative where the mask is not zero, without further padding."""
    return slope(function, batch)[:, : kept.shape[1]] * kept


def _disturbed(batch: Batch) -> Batch:
    """Return the batch with other logits and tokens under its mask."""
    masked = batch.mask == 0
    shift = torch.arange(batch.logits.shape[-1], dtype=batch.logits.dtype)
    names = ("logits", "logits_old", "logits_ref", "logits_sampler")
    parts: dict[str, Any] = {
        name: torch.where(masked[..., None], getattr(batch, name) + (number + 1) * shift, getattr(batch, name))
        for number, name in enumerate(names)
    }
    tokens = torch.where(masked, (batch.tokens + 1) % batch.logits.shape[-1], batch.tokens)
    return dataclasses.replace(batch, **parts, tokens=tokens)


def _wider(batch: Batch) -> Batch:
    """Return the batch with one more padded position."""

    def pad(tensor: Tensor) -> Tensor:
        filler = torch.ones_like if tensor is batch.scored else torch.zeros_like
        return torch.cat([tensor, filler(tensor[:, :1])], dim=1)

    tables = {entry.name: getattr(batch, entry.name) for entry in dataclasses.fields(batch)}
    parts: dict[str, Any] = {
        name: pad(made) for name, made in tables.items() if isinstance(made, Tensor) and made.ndim > 1
    }
    return dataclasses.replace(batch, **parts)


def _compared(
    invariant: str, detail: str, make: Callable[[], Tensor], expected: Tensor, batch: Batch, tolerance: float
) -> Check:
    """Return the check that a loss's derivative on some variant of a batch is the expected one, row by row."""
    try:
        made = make()
    except SubjectError as failure:
        return verdict_of(invariant, detail, (str(failure),), tolerance=tolerance)
    error = relative_gap(made, expected)
    if error <= tolerance:
        return verdict_of(invariant, detail, error=error, tolerance=tolerance)
    gap = (made - expected).abs().flatten(1).amax(1)
    row = int(gap.nan_to_num(nan=float("inf")).argmax())
    length = int(batch.present[row].sum())
    witness = (
        f"row {row}, response {batch.tokens[row, :length].tolist()} with reward {float(batch.reward[row]):.3g} in "
        f"group {int(batch.group[row])}: its gradient differs by {float(gap[row]):.3g}"
    )
    return verdict_of(invariant, detail, (witness,), error=error, tolerance=tolerance)
