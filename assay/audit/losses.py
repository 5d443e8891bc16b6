"""The audit of a loss: what does its expected gradient ascend, exactly, and is that what it is said to ascend?"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.call import (
    Batch,
    Conduct,
    Group,
    Loss,
    conduct,
    logp_slope,
    make_batch,
    slope,
    touches_logits,
    with_advantage,
)
from assay.audit.check import TOLERANCE, Check, SubjectError, relative_gap, verdict_of
from assay.audit.curl import curl
from assay.audit.diagnosis import diagnose
from assay.audit.expectation import Accept, Design, Expectation, expected_ascent, stated_part
from assay.audit.loss_report import LossReport, packages
from assay.audit.precision import tolerance_for
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

LARGEST_SHORTCUT = 1e-5
"""Most that a shortcut may be off, whatever the loss computes in."""
PADDINGS = (7.0, float("nan"))
_OFF_POLICY = ("surrogate", "sampler_kl")
"""Fields that differ from others off-policy alone; on-policy the others are named first."""


@dataclass(frozen=True)
class Question:
    """What is asked about a loss, and to what precision it can be answered.

    Attributes:
        loss: called by parameter name.
        world: its problems.
        terms: the stated objective, coefficients by name.
        design: how batches are made.
        tolerance: relative.
        why: why it is that.
        coarsest: least precise floating type that the loss computed in.
    """

    loss: Loss
    world: World
    terms: Mapping[str, float]
    design: Design
    tolerance: float = TOLERANCE
    why: str = ""
    coarsest: torch.dtype = torch.float64

    @property
    def stated(self) -> Float[Tensor, " D"]:
        """Return the gradient that should be ascended, meaned over the problems."""
        return objective_gradient(dict(self.terms), self.world)


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
    place = default_world() if world is None else world
    sizes = (group_size,) * len(place) if isinstance(group_size, int) else tuple(group_size)
    if not place or len(sizes) != len(place) or min(sizes) < 1 or max(sizes) < 2:
        raise InputError(
            f"group_size = {group_size}: need at least 2 responses, or a size for each of {len(place)} problems"
        )
    if prompts not in (1, len(place)):
        raise InputError(f"prompts = {prompts}: a batch holds 1 group, or one of each of the {len(place)} problems")
    stated = subject.declared(max(sizes)) if objective is None else objective
    terms = parse_objective(stated)
    blank = LossReport(
        subject.name,
        stated,
        (),
        group_size=group_size,
        world=_described(place),
        versions=packages(subject),
        subject=subject,
    )
    try:
        own = subject.loss if advantage is None else with_advantage(subject.loss, advantage)
        with one_thread(), torch.enable_grad():
            return _audit(blank, Question(own, place, terms, Design(sizes, prompts, accept, budget)), measure_curl)
    except SubjectError as error:
        return dataclasses.replace(blank, claims=(Claim("runs", Verdict.COULD_NOT_RUN, str(error)),))


def _name(function: Loss) -> str:
    inner = function.func if isinstance(function, functools.partial) else function
    return getattr(inner, "__qualname__", type(inner).__name__)


def _described(world: World) -> str:
    """Return in words what the responses come from."""
    drawn = [torch.equal(problem.draws, problem.logits) for problem in world]
    return f"{', '.join(repr(problem.name) for problem in world)}; {'on' if all(drawn) else 'off'}-policy"


def _audit(blank: LossReport, question: Question, measure_curl: bool) -> LossReport:
    """Ask everything in order; a loss that cannot be called at all raises SubjectError."""
    batch = make_batch(question.world, _groups(question.world, question.design.sizes))
    manner = conduct(question.loss, batch)
    first = slope(question.loss, batch)
    claims: list[Claim] = _manners(manner, blank.subject)
    if not manner.repeats:
        return dataclasses.replace(blank, claims=tuple(claims))
    tolerance, why = blank.subject.tolerance, blank.subject.why
    if tolerance is None:
        tolerance, why = tolerance_for(manner.coarsest, TOLERANCE)
    design = dataclasses.replace(question.design, tolerance=max(TOLERANCE, min(tolerance, LARGEST_SHORTCUT)))
    question = dataclasses.replace(
        question, design=design, tolerance=tolerance, why=why or blank.subject.why, coarsest=manner.coarsest
    )
    claims += _structure(question, batch, first)
    made: Expectation | str
    try:
        made = expected_ascent(question.loss, question.world, question.design, question.stated)
    except (SubjectError, InputError) as error:
        made = str(error)
    if not torch.equal(slope(question.loss, batch), first):
        finding = "after all calls its gradient on the first batch is another than at the start: it keeps a state"
        claims[0] = Claim("deterministic", Verdict.DISAGREES, claims[0].detail, (finding,))
        return dataclasses.replace(blank, claims=tuple(claims))
    if isinstance(made, str):
        claims.append(Check("I1 expected gradient", Verdict.COULD_NOT_RUN, made))
        return dataclasses.replace(blank, claims=tuple(claims))
    return _with_ascent(blank, tuple(claims), made, question, measure_curl)


def _with_ascent(
    blank: LossReport, claims: tuple[Claim, ...], made: Expectation, question: Question, measure_curl: bool
) -> LossReport:
    """Return the report with what is ascended, and with the claim about it."""
    world, terms = question.world, question.terms
    plain = _leave_one_out_variance(world, question.design.sizes)
    report = dataclasses.replace(
        blank, exactness=made.exactness, variance=made.variance, variance_ratio=made.variance / plain if plain else None
    )
    known = [{name: field(name, problem) for name in (*terms, *FIELDS, *_OFF_POLICY)} for problem in world]
    scale = max(float(row.norm()) for rows in known for row in rows.values())
    if made.sampled:
        return dataclasses.replace(report, claims=(*claims, _sampled_claim(made, question, scale)))
    fields = [part * len(world) for part in torch.split(made.ascent, [problem.logits.numel() for problem in world])]
    explain = functools.partial(attribute, scale=scale, nearest=tuple(terms), exact=question.tolerance)
    rank = [int((problem.tree.allowed.sum(1) - 1).sum()) for problem in world]
    ascends = explain(torch.cat(fields), {n: torch.cat([row[n] for row in known]) for n in known[0]}, rank=sum(rank))
    by_problem = {
        f"{number + 1} {problem.name}": explain(part, row, longest=2, rank=free)
        for number, (problem, part, row, free) in enumerate(zip(world, fields, known, rank, strict=True))
    }
    first = _unbiased(made, question, scale)
    if first.verdict is Verdict.HOLDS:
        ascends = dataclasses.replace(ascends, coefficients=dict(terms), residual=first.error or 0.0, exact=True)
        return dataclasses.replace(report, claims=(*claims, first), ascends=ascends, by_problem=by_problem)
    asked = measure_curl and not ascends.exact and question.coarsest is torch.float64
    bend = curl(question.loss, world, question.design) if asked else None
    found = diagnose(terms, ascends, by_problem, bend, question.design)
    mended = dataclasses.replace(first, remedy=found.remedy)
    return dataclasses.replace(
        report, claims=(*claims, mended), ascends=ascends, by_problem=by_problem, curl=bend, because=found.because
    )


def _manners(manner: Conduct, subject: Subject) -> list[Claim]:
    """Return the claims about a loss's conduct: it repeats itself, it keeps its hands off, and its precision."""
    repeated = "the same value and gradient twice from the same inputs"
    again = () if manner.repeats else ("it returns another value or gradient when called again",)
    verdicts = {True: Verdict.HOLDS, False: Verdict.DISAGREES}
    claims = [
        Claim("deterministic", verdicts[manner.repeats], repeated, again),
        Claim("pure", verdicts[not manner.faults], "inputs unchanged, no global random numbers", manner.faults),
    ]
    name = str(manner.coarsest).removeprefix("torch.")
    if subject.tolerance is not None or manner.coarsest is torch.float64:
        return claims
    if manner.coarsest is torch.float32:
        said = f"warning: it computes in {name}, so agreement is only to its rounding"
        return [*claims, Claim("precision", Verdict.HOLDS, said)]
    said = f"it computes in {name}, whose rounding hides mistakes of percents: nothing can be shown to hold"
    return [*claims, Claim("precision", Verdict.COULD_NOT_RUN, said)]


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


def _structure(question: Question, whole: Batch, base: Float[Tensor, "B T V"]) -> list[Claim]:
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
    """I2: a batch of groups is the mean of its groups."""
    groups = _groups(question.world, question.design.sizes)

    def alone() -> Tensor:
        return torch.cat([slope(question.loss, make_batch(question.world, [group])) for group in groups]) / len(groups)

    split = "a batch of groups gives the mean of its groups' gradients"
    remedy = "use the ids in group, and divide by counts of the whole batch, not of the rows at hand"
    found = _compared("I2", split, alone, base, whole, question.tolerance)
    return found if found.verdict is Verdict.HOLDS else dataclasses.replace(found, remedy=remedy)


def _uneven_groups(question: Question) -> Claim | None:
    """I4: groups of different sizes in one batch each get a multiple of what they get alone; None where they do, or
    where the loss refuses them."""
    if len(question.world) < 2 or min(question.design.sizes) < 2:
        return None
    sizes = tuple(size + number % 2 for number, size in enumerate(question.design.sizes))
    groups = _groups(question.world, sizes)
    whole = make_batch(question.world, groups)
    try:
        together = torch.split(slope(question.loss, whole), list(sizes))
        alone = [slope(question.loss, make_batch(question.world, [group])) for group in groups]
    except SubjectError:
        return None
    for number, (made, own) in enumerate(zip(together, alone, strict=True)):
        factor = float((made * own).sum() / own.square().sum()) if float(own.norm()) else 0.0
        if relative_gap(made, factor * own) > question.tolerance and float(made.norm()):
            finding = (
                f"groups of {' and '.join(map(str, sizes))} responses in one batch: what group {number} gets is no "
                "multiple of what it gets alone"
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


def _unbiased(made: Expectation, question: Question, scale: float) -> Check:
    """I1: the expected update is the gradient of the declared objective, on each problem."""
    world, stated = question.world, question.stated
    error = max(
        _distance(part.ascent, stated_part(stated, world, part.problems), scale, one)
        for part in made.parts
        for one in _each(world, part.problems)
    )
    wrong = not error <= question.tolerance
    findings = [worst_weight(made.ascent, stated, world)] if wrong else []
    if wrong:
        findings += smallest_witness(question.loss, world, question.design, dict(question.terms))
    return verdict_of(
        "I1",
        f"expected update against the gradient of {_sum_in_words(question.terms)}, the problem that is furthest off",
        findings,
        error=error,
        tolerance=question.tolerance,
        why=question.why,
        exactness=made.exactness,
    )


def _sum_in_words(terms: Mapping[str, float]) -> str:
    return " + ".join(name if value == 1 else f"{value:g}*{name}" for name, value in terms.items()).replace("+ -", "- ")


def _each(world: World, problems: tuple[int, ...]) -> list[slice]:
    """Return where each problem's weights are among those of a kind of batch."""
    ends = [0, *itertools.accumulate(world[number].logits.numel() for number in problems)]
    return [slice(low, high) for low, high in itertools.pairwise(ends)]


def _distance(made: Float[Tensor, " D"], stated: Float[Tensor, " D"], scale: float, where: slice) -> float:
    """Return the distance of two gradients over the stated one, or over a typical one where that is zero."""
    size = float(stated[where].norm())
    return float((made[where] - stated[where]).norm()) / (size if size > 1e-12 * scale else scale)


def _sampled_claim(made: Expectation, question: Question, scale: float) -> Check:
    """Return what can be said when a part was sampled: a bias that was found, or that none was."""
    details, findings = [], []
    for part in made.parts:
        name = " and ".join(repr(question.world[number].name) for number in part.problems)
        if part.sampled is None:
            goal = stated_part(question.stated, question.world, part.problems)
            error = max(_distance(part.ascent, goal, scale, one) for one in _each(question.world, part.problems))
            details.append(f"{name}: relative error {error:.1e}, enumerated")
            findings += [f"{name}: enumerated, and off"] if not error <= question.tolerance else []
            continue
        low, high = part.sampled.bias
        along = "{:.3g} to {:.3g}".format(*part.sampled.coefficient)
        details.append(
            f"{name}: sampled, {along} x the stated gradient, bias {low:.2g} to {high:.2g} of it along the likeliest "
            "direction"
        )
        findings += [f"{name}: the interval of the bias excludes zero"] if low > 0 or high < 0 else []
    detail = "; ".join(details)
    if findings:
        return verdict_of("I1", detail, findings, exactness=made.exactness)
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
