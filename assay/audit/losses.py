"""The audit of a loss: what does its expected gradient ascend, exactly, and is that what it is said to ascend?"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.call import Batch, Conduct, Group, Loss, conduct, make_batch, slope, with_advantage
from assay.audit.check import TOLERANCE, Check, SubjectError, relative_gap, verdict_of
from assay.audit.curl import curl
from assay.audit.diagnosis import Diagnosis, diagnose
from assay.audit.expectation import Accept, Design, Expectation, expected_ascent
from assay.audit.loss_report import LossReport, packages
from assay.audit.subjects import Subject
from assay.audit.witness import smallest_witness, worst_weight
from assay.errors import InputError
from assay.threads import one_thread
from assay.tree.attribution import attribute
from assay.tree.fields import FIELDS, field, objective_gradient, parse_objective
from assay.tree.groups import EVALUATION_BUDGET
from assay.tree.moments import leave_one_out_moments
from assay.tree.world import World, default_world
from assay.verdicts import Claim, Verdict

PADDINGS = (7.0, float("nan"))
_OFF_POLICY = ("surrogate", "sampler_kl")
"""Fields that differ from others off-policy alone; on-policy the others are named first."""
COARSE = 1e-5
"""Relative tolerance of a loss that computes in float32 somewhere: a few hundred roundings."""
COARSEST = 0.05
"""The same for half precision."""


def loss(
    function: Loss | Subject,
    *,
    objective: str | None = None,
    group_size: int | tuple[int, ...] = 4,
    world: World | None = None,
    advantage: Loss | None = None,
    prompts: int = 1,
    accept: Accept | None = None,
    budget: int = EVALUATION_BUDGET,
    measure_curl: bool = True,
) -> LossReport:
    """Audit a loss by enumerating every group of responses in a small world. It returns a report and never prints.

    Args:
        function: called with the parameters it names out of :data:`assay.audit.call.NAMES`; returns a scalar to
            minimise. A subject brings its own objective and tolerance.
        objective: what it is said to ascend, such as ``"reward - 0.03*kl"``, meaned over the groups of a batch; None
            takes the subject's own, or ``"reward"``.
        group_size: responses in a group, at least 2; or one size for each problem of the world.
        world: problems to audit in; None takes :func:`assay.tree.world.default_world`.
        advantage: makes ``adv``, called by parameter name as well; None takes leave-one-out of the reward.
        prompts: groups in a batch: 1, or one of every problem of the world, for a loss that couples them.
        accept: given a group's rewards, whether the group is used; one that is not is drawn again.
        measure_curl: whether to ask, of an update that is no known gradient, whether it is one at all.
        budget: most batches to enumerate. Past it, classes of responses are tried, and then batches are sampled.

    Returns:
        The report; a loss that cannot be run is a verdict in it and not an exception.

    Raises:
        InputError: the objective is no sum of known ones, or the groups do not fit the world.
    """
    subject = function if isinstance(function, Subject) else Subject(_name(function), function)
    place = world or default_world()
    sizes = (group_size,) * len(place) if isinstance(group_size, int) else group_size
    if len(sizes) != len(place) or min(sizes) < 1 or max(sizes) < 2:
        raise InputError(
            f"group_size = {group_size}: need at least 2 responses, or a size for each of {len(place)} problems"
        )
    if prompts not in (1, len(place)):
        raise InputError(f"prompts = {prompts}: a batch holds 1 group, or one of each of the {len(place)} problems")
    stated = objective or subject.declared(max(sizes))
    terms = parse_objective(stated)
    if advantage is not None:
        subject = dataclasses.replace(subject, loss=with_advantage(subject.loss, advantage))
    blank = LossReport(subject.name, stated, (), group_size=group_size, versions=packages(subject), subject=subject)
    with one_thread():
        return _audit(blank, terms, place, Design(sizes, prompts, accept, budget), measure_curl)


def _name(function: Loss) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _audit(blank: LossReport, terms: dict[str, float], world: World, design: Design, measure_curl: bool) -> LossReport:
    function = blank.subject.loss
    batch = make_batch(world, _groups(world, design.sizes))
    try:
        manner = conduct(function, batch)
        slope(function, batch)
    except SubjectError as error:
        return dataclasses.replace(blank, claims=(Claim("runs", Verdict.COULD_NOT_RUN, str(error)),))
    if not manner.repeats:
        return dataclasses.replace(blank, claims=tuple(_manners(manner, blank.subject)))
    tolerance, why = _tolerance(blank.subject, manner)
    design = dataclasses.replace(design, tolerance=tolerance)
    claims = [*_manners(manner, blank.subject), *_structure(function, world, batch, design)]
    stated = objective_gradient(terms, world)
    try:
        made = expected_ascent(function, world, design, stated)
    except (SubjectError, InputError) as error:
        claims.append(Check("I1 expected gradient", Verdict.COULD_NOT_RUN, str(error)))
        return dataclasses.replace(blank, claims=tuple(claims))
    return _with_ascent(blank, tuple(claims), made, stated, terms, world, design, (tolerance, why), measure_curl)


def _with_ascent(
    blank: LossReport,
    claims: tuple[Claim, ...],
    made: Expectation,
    stated: Float[Tensor, " D"],
    terms: dict[str, float],
    world: World,
    design: Design,
    measure: tuple[float, str],
    measure_curl: bool,
) -> LossReport:
    names = tuple(dict.fromkeys((*terms, *FIELDS, *_OFF_POLICY)))
    known = [{name: field(name, problem) for name in names} for problem in world]
    scale = max(float(row.norm()) for rows in known for row in rows.values())
    plain = _leave_one_out_variance(world, design.sizes)
    report = dataclasses.replace(
        blank, exactness=made.exactness, variance=made.variance, variance_ratio=made.variance / plain if plain else None
    )
    if made.sampled is not None:
        return dataclasses.replace(report, claims=(*claims, _sampled_claim(made, blank.objective)))
    fields = [part * len(world) for part in torch.split(made.ascent, [problem.logits.numel() for problem in world])]
    together = {name: torch.cat([row[name] for row in known]) for name in names}
    explain = functools.partial(attribute, scale=scale, nearest=tuple(terms), exact=measure[0])
    ascends = explain(torch.cat(fields), together)
    by_problem = {
        problem.name: explain(part, row, longest=2) for problem, part, row in zip(world, fields, known, strict=True)
    }
    bend = None if ascends.exact or not measure_curl else curl(blank.subject.loss, world, design)
    found = diagnose(terms, ascends, by_problem, bend, design.sizes)
    first = _unbiased(made, stated, world, design, blank, measure, scale, found, terms)
    return dataclasses.replace(
        report, claims=(*claims, first), ascends=ascends, by_problem=by_problem, curl=bend, because=found.because
    )


def _tolerance(subject: Subject, manner: Conduct) -> tuple[float, str]:
    """Return the relative tolerance, and why it is that: a subject's own, or what the loss was seen to compute in."""
    if subject.tolerance is not None:
        return subject.tolerance, subject.why
    if manner.coarsest is torch.float64:
        return TOLERANCE, subject.why
    name = str(manner.coarsest).removeprefix("torch.")
    return (COARSE if manner.coarsest is torch.float32 else COARSEST), f"the loss computes in {name}"


def _manners(manner: Conduct, subject: Subject) -> list[Claim]:
    """Return the claims about a loss's conduct: it repeats itself, it keeps its hands off, and its precision."""
    repeated = "the same value twice from the same inputs"
    claims = [
        Claim("deterministic", Verdict.HOLDS, repeated)
        if manner.repeats
        else Claim("deterministic", Verdict.DISAGREES, repeated, ("it returns another value when called again",)),
        Claim(
            "pure",
            Verdict.DISAGREES if manner.faults else Verdict.HOLDS,
            "inputs unchanged, no global random numbers",
            manner.faults,
        ),
    ]
    if subject.tolerance is None and manner.coarsest is not torch.float64:
        name = str(manner.coarsest).removeprefix("torch.")
        claims.append(
            Claim("precision", Verdict.HOLDS, f"warning: it computes in {name}, so agreement is only to its rounding")
        )
    return claims


def _groups(world: World, sizes: tuple[int, ...]) -> list[Group]:
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


def _structure(function: Loss, world: World, whole: Batch, design: Design) -> list[Claim]:
    """Check what must hold on every batch, on one with several lengths."""
    tolerance = design.tolerance
    base = slope(function, whole)
    order = torch.arange(len(whole.reward)).flip(0).roll(1)
    groups = _groups(world, design.sizes)
    claims: list[Claim] = [_masked_positions_are_inert(function, whole, base, tolerance)]
    shuffled = "rows in another order, with their group ids, give each row the same gradient"
    claims.append(
        _compared("I4", shuffled, lambda: slope(function, whole.take(order)), base[order], whole.take(order), tolerance)
    )

    def alone() -> Tensor:
        return torch.cat([slope(function, make_batch(world, [group])) for group in groups]) / len(groups)

    split = "a batch of groups gives the mean of its groups' gradients"
    if min(design.sizes) > 1 and len(world) > 1:
        remedy = "use the ids in group, and divide by counts of the whole batch, not of the rows at hand"
        found = _compared("I2", split, lambda: base, alone(), whole, tolerance)
        claims.append(found if found.verdict is Verdict.HOLDS else dataclasses.replace(found, remedy=remedy))
    return claims


def _masked_positions_are_inert(function: Loss, whole: Batch, base: Float[Tensor, "B T V"], tolerance: float) -> Claim:
    """I3: what stands under the mask, and how far the batch is padded, changes nothing."""
    detail = "values under the mask, NaN included, and more padding change no gradient"
    variants = {f"{value} under the mask": dataclasses.replace(whole, padding=value) for value in PADDINGS}
    variants["one more padded position"] = _wider(whole)
    kept = whole.mask[..., None]
    for name, batch in variants.items():
        found = _compared("I3", detail, functools.partial(_kept, function, batch, kept), base * kept, whole, tolerance)
        if found.verdict is not Verdict.HOLDS:
            remedy = "select with the mask (torch.where) before any arithmetic: NaN * 0 is NaN"
            return dataclasses.replace(
                found, findings=tuple(f"with {name}: {line}" for line in found.findings), remedy=remedy
            )
    return verdict_of("I3", detail, tolerance=tolerance)


def _kept(function: Loss, batch: Batch, kept: Float[Tensor, "B T 1"]) -> Float[Tensor, "B T V"]:
    """Return a loss's derivative where the mask is not zero, without further padding."""
    return slope(function, batch)[:, : kept.shape[1]] * kept


def _wider(batch: Batch) -> Batch:
    """Return the batch with one more padded position."""

    def pad(tensor: Tensor) -> Tensor:
        filler = torch.ones_like if tensor is batch.scored else torch.zeros_like
        return torch.cat([tensor, filler(tensor[:, :1])], dim=1)

    names = ("logits", "logits_old", "logits_ref", "logits_sampler", "tokens", "scored", "mask", "value", "present")
    parts: dict[str, Any] = {name: pad(getattr(batch, name)) for name in names}
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


def _unbiased(
    made: Expectation,
    stated: Float[Tensor, " D"],
    world: World,
    design: Design,
    blank: LossReport,
    measure: tuple[float, str],
    scale: float,
    found: Diagnosis,
    terms: dict[str, float],
) -> Check:
    """I1: the expected update is the gradient of the declared objective."""
    tolerance, why = measure
    error = float((made.ascent - stated).norm() / (stated.norm() if stated.norm() > 1e-12 * scale else scale))
    detail = f"expected update against the gradient of {blank.objective}"
    findings = []
    if not error <= tolerance:
        findings = [worst_weight(made.ascent, stated, world)]
        findings += smallest_witness(blank.subject.loss, world, design, terms)
    return verdict_of(
        "I1",
        detail,
        findings,
        error=error,
        tolerance=tolerance,
        why=why,
        exactness=made.exactness,
        remedy=found.remedy,
    )


def _sampled_claim(made: Expectation, objective: str) -> Check:
    """Return what sampling can say: a bias that its interval shows, or that none was shown."""
    assert made.sampled is not None
    low, high = made.sampled.bias
    along = "{:.3g} to {:.3g}".format(*made.sampled.coefficient)
    detail = (
        f"sampled: {along} x gradient of {objective}; bias {low:.2g} to {high:.2g} of it along the likeliest direction"
    )
    if low > 0 or high < 0:
        return verdict_of("I1", detail, ("the interval of the bias excludes zero",), exactness=made.exactness)
    unproven = f"{detail}: nothing refutes the claim, and sampling proves nothing; take a smaller world or group"
    return Check("I1 expected gradient", Verdict.COULD_NOT_RUN, unproven, exactness=made.exactness)


def _leave_one_out_variance(world: World, sizes: tuple[int, ...]) -> float:
    """Return the summed variance of leave-one-out on the reward, on-policy, with as many responses; 0 for a group of
    one."""
    total = 0.0
    for problem, size in zip(world, sizes, strict=True):
        if size < 2:
            return 0.0
        logp = problem.tree.token_logp(problem.logits).sum(1)
        chosen = problem.logp_jacobian * problem.mask[..., None]
        total += leave_one_out_moments(logp, problem.reward, chosen.sum(1)).variance(size)
    return total
