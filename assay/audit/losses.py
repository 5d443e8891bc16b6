"""The audit of a loss: what does its expected gradient ascend, exactly, and is that what it is said to ascend?"""

from __future__ import annotations

import dataclasses
import functools

import torch

from assay.audit.call import Conduct, Loss, conduct, make_batch, slope, with_advantage
from assay.audit.check import TOLERANCE, SubjectError, could_not_run
from assay.audit.claims import leave_one_out_variance, sampled, unbiased
from assay.audit.curl import curl
from assay.audit.diagnosis import diagnose
from assay.audit.expectation import Accept, Design, Expectation, expected_ascent
from assay.audit.loss_report import LossReport, packages
from assay.audit.precision import tolerance_for
from assay.audit.question import Question
from assay.audit.structure import structure, typical_groups
from assay.audit.subjects import Subject
from assay.errors import InputError
from assay.threads import one_thread
from assay.tree.attribution import attribute
from assay.tree.fields import FIELDS, field, parse_objective
from assay.tree.groups import EVALUATION_BUDGET
from assay.tree.world import World, by_problem, default_world
from assay.verdicts import Claim, Verdict

LARGEST_SHORTCUT = 1e-5
"""Most that a shortcut may be off, whatever the loss computes in."""
_OFF_POLICY = ("surrogate", "sampler_kl")
"""Fields that differ from others off-policy alone; on-policy the others are named first."""


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
    with torch.inference_mode(False):
        place = default_world() if world is None else world
    sizes = group_size if isinstance(group_size, tuple) else (group_size,) * len(place)
    whole = all(type(size) is int for size in sizes)
    if not place or not whole or len(sizes) != len(place) or min(sizes) < 1 or max(sizes) < 2:
        raise InputError(
            f"group_size = {group_size}: need at least 2 responses, or a size for each of {len(place)} problems"
        )
    if len({problem.logits.shape[1] for problem in place}) > 1:
        raise InputError("the problems of a world have vocabularies of different sizes; a batch has one")
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
        with one_thread(), torch.inference_mode(False), torch.enable_grad():
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
    batch = make_batch(question.world, typical_groups(question.world, question.design.sizes))
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
    claims += structure(question, batch, first)
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
        claims.append(could_not_run("I1", made))
        return dataclasses.replace(blank, claims=tuple(claims))
    return _with_ascent(blank, tuple(claims), made, question, measure_curl)


def _with_ascent(
    blank: LossReport, claims: tuple[Claim, ...], made: Expectation, question: Question, measure_curl: bool
) -> LossReport:
    """Return the report with what is ascended, and with the claim about it."""
    world, terms = question.world, question.terms
    plain = leave_one_out_variance(world, question.design.sizes)
    report = dataclasses.replace(
        blank, exactness=made.exactness, variance=made.variance, variance_ratio=made.variance / plain if plain else None
    )
    known = [{name: field(name, problem) for name in (*terms, *FIELDS, *_OFF_POLICY)} for problem in world]
    scale = max(float(row.norm()) for rows in known for row in rows.values())
    if made.sampled:
        return dataclasses.replace(report, claims=(*claims, sampled(made, question, scale)))
    fields = [part * len(world) for part in by_problem(made.ascent, world)]
    explain = functools.partial(attribute, scale=scale, nearest=tuple(terms), exact=question.tolerance)
    rank = [int((problem.tree.allowed.sum(1) - 1).sum()) for problem in world]
    ascends = explain(torch.cat(fields), {n: torch.cat([row[n] for row in known]) for n in known[0]}, rank=sum(rank))
    each = {
        f"{number + 1} {problem.name}": explain(part, row, longest=2, rank=free)
        for number, (problem, part, row, free) in enumerate(zip(world, fields, known, rank, strict=True))
    }
    first = unbiased(made, question, scale)
    if question.tolerance > LARGEST_SHORTCUT and first.verdict is Verdict.HOLDS:
        said = f"{first.detail}: no difference larger than the rounding of what it computes in"
        first = dataclasses.replace(first, verdict=Verdict.COULD_NOT_RUN, detail=said)
    if first.verdict is Verdict.HOLDS:
        ascends = dataclasses.replace(ascends, coefficients=dict(terms), residual=first.error or 0.0, exact=True)
        return dataclasses.replace(report, claims=(*claims, first), ascends=ascends, by_problem=each)
    asked = measure_curl and not ascends.exact and question.coarsest is torch.float64
    bend = curl(question.loss, world, question.design) if asked else None
    found = diagnose(terms, ascends, each, bend, question.design)
    mended = dataclasses.replace(first, remedy=found.remedy)
    return dataclasses.replace(
        report, claims=(*claims, mended), ascends=ascends, by_problem=each, curl=bend, because=found.because
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
