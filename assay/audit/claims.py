"""The claim that an expected update is the gradient of what is declared, enumerated or sampled."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from assay.audit.check import Check, verdict_of
from assay.audit.expectation import Expectation, stated_part
from assay.audit.question import Question
from assay.audit.witness import smallest_witness, worst_weight
from assay.tree.moments import leave_one_out_moments
from assay.tree.world import World
from assay.verdicts import Verdict


def unbiased(made: Expectation, question: Question, scale: float) -> Check:
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
    return float((made[where] - stated[where]).norm()) / (size if size > 1e-12 * scale else scale or 1.0)


def sampled(made: Expectation, question: Question, scale: float) -> Check:
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


def leave_one_out_variance(world: World, sizes: tuple[int, ...]) -> float:
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
