"""The claim that an expected update is the gradient of what is declared, enumerated or sampled."""

from __future__ import annotations

from collections.abc import Mapping

from assay.audit.check import Check, could_not_run, verdict_of
from assay.audit.expectation import Expectation, Part, stated_part
from assay.audit.question import Question
from assay.audit.witness import smallest_witness, worst_weight
from assay.tree.moments import leave_one_out_moments
from assay.tree.world import World, by_problem


def unbiased(made: Expectation, question: Question, scale: float) -> Check:
    """I1: the expected update is the gradient of the declared objective, on each problem."""
    world, stated = question.world, question.stated
    error = max(_error(part, question, scale) for part in made.parts)
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


def _error(part: Part, question: Question, scale: float) -> float:
    """Return the distance of what is ascended from what is stated, over the latter, on the problem that is furthest
    off; over a typical gradient where nothing should be ascended."""
    place = tuple(question.world[number] for number in part.problems)
    goal = stated_part(question.stated, question.world, part.problems)
    errors = []
    for made, stated in zip(by_problem(part.ascent, place), by_problem(goal, place), strict=True):
        size = float(stated.norm())
        errors.append(float((made - stated).norm()) / (size if size > 1e-12 * scale else scale or 1.0))
    return max(errors)


def sampled(made: Expectation, question: Question, scale: float) -> Check:
    """Return what can be said when a part was sampled: a bias that was found, or that none was."""
    details, findings = [], []
    for part in made.parts:
        name = " and ".join(repr(question.world[number].name) for number in part.problems)
        if part.sampled is None:
            error = _error(part, question, scale)
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
    return could_not_run("I1", unproven, exactness=made.exactness)


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
