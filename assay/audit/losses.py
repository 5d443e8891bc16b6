"""The audit of a loss: what does its expected gradient ascend, exactly, and does that equal what it is said to
ascend?"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.call import Batch, Group, Loss, make_batch, side_effects, slope
from assay.audit.check import SubjectError
from assay.errors import InputError
from assay.threads import one_thread
from assay.tree.attribution import Attribution, attribute
from assay.tree.fields import FIELDS, field, objective_gradient, parse_objective
from assay.tree.groups import group_moments
from assay.tree.moments import leave_one_out_moments
from assay.tree.world import World, default_world
from assay.verdicts import Claim, Verdict, overall

TOLERANCE = 1e-9
"""Relative; everything is enumerated in float64, where honest losses come within about 1e-14."""
PADDINGS = (7.0, float("nan"))


@dataclass(frozen=True)
class LossReport:
    """What an audit found out about a loss.

    Attributes:
        objective: what the loss was said to ascend.
        claims: each with its verdict and witnesses.
        ascends: what its expected gradient is, in terms of known fields, over all problems at once.
        by_problem: the same for each problem alone; a loss may weigh problems differently.
        variance: trace of the estimate's covariance, a group of each problem.
        variance_ratio: that, over the variance of leave-one-out on the reward with as many responses.
        group_size: responses in a group.
        groups: groups that the loss was evaluated on.
    """

    objective: str
    claims: tuple[Claim, ...]
    ascends: Attribution | None
    by_problem: dict[str, Attribution]
    variance: float
    variance_ratio: float
    group_size: int
    groups: int

    @property
    def verdict(self) -> Verdict:
        """Return the verdict of all claims together."""
        return overall(self.claims)

    @property
    def holds(self) -> bool:
        """Return whether every claim holds."""
        return self.verdict is Verdict.HOLDS

    def __str__(self) -> str:
        lines = [f"{claim.verdict}  {claim.name}: {claim.detail}" for claim in self.claims]
        lines += [f"    {finding}" for claim in self.claims for finding in claim.findings]
        return "\n".join([*lines, *self.in_words()])

    def record(self) -> dict[str, Any]:
        """Return the report as plain values, ready for JSON; what could not be measured is None."""
        made = dataclasses.asdict(self)
        for name in ("variance", "variance_ratio"):
            made[name] = made[name] if math.isfinite(made[name]) else None
        return {"verdict": self.verdict, **made, "in_words": self.in_words()}

    def in_words(self) -> list[str]:
        """Return what the loss ascends, in words and coefficients."""
        if self.ascends is None:
            return []
        lines = [f"ascends: {describe(self.ascends)}"]
        if not self.ascends.exact:
            lines += [f"  {name}: {describe(made)}" for name, made in self.by_problem.items()]
        ratio = f"{self.variance_ratio:.3g} times leave-one-out"
        lines.append(f"variance of one group of {self.group_size}: {self.variance:.4g}, {ratio}")
        return lines


def describe(made: Attribution) -> str:
    """Return an attribution in words."""
    if not made.coefficients:
        return "nothing, its expected gradient is zero"
    terms = " + ".join(f"{value:.6g} x gradient of {name}" for name, value in made.coefficients.items())
    terms = terms.replace("+ -", "- ")
    if made.exact:
        return f"{terms} (residual {made.residual:.0e})"
    return f"no combination of known objectives that was tried; nearest {terms} leaves {made.residual:.1%}"


def loss(
    function: Loss,
    *,
    objective: str = "reward",
    group_size: int = 4,
    world: World | None = None,
) -> LossReport:
    """Audit a loss by enumerating every group of responses in a small world. It returns a report and never prints.

    Args:
        function: called with the parameters it names out of :data:`assay.audit.call.NAMES`; returns a scalar to
            minimise.
        objective: what it is said to ascend, such as ``"reward - 0.03*kl"``, meaned over the groups of a batch.
        group_size: responses in a group, at least 2.
        world: problems to audit in; None takes :func:`assay.tree.world.default_world`.

    Returns:
        The report; a loss that cannot be run is a verdict in it and not an exception.

    Raises:
        InputError: the objective is no sum of known ones, or the group is too small.
    """
    if group_size < 2:
        raise InputError(f"group_size = {group_size}: a group needs at least 2 responses")
    terms, place = parse_objective(objective), world or default_world()
    try:
        with one_thread():
            return _audit(function, objective, terms, place, group_size)
    except SubjectError as error:
        return _not_run(objective, group_size, Claim("runs", Verdict.COULD_NOT_RUN, str(error)))
    except InputError as error:
        return _not_run(objective, group_size, Claim("enumerated", Verdict.COULD_NOT_RUN, str(error)))


def _audit(function: Loss, objective: str, terms: dict[str, float], place: World, group_size: int) -> LossReport:
    claims = [_calls(function, place, group_size), *_structure(function, place, group_size)]
    fields, variance, groups = _expected_ascent(function, place, group_size)
    claims.append(_unbiased(fields, place, terms, objective))
    known = [{name: field(name, problem) for name in FIELDS} for problem in place]
    scale = max(float(made.norm()) for row in known for made in row.values())
    together = {name: torch.cat([row[name] for row in known]) for name in FIELDS}
    plain = sum(_leave_one_out_variance(place, group_size))
    return LossReport(
        objective,
        tuple(claims),
        attribute(torch.cat(fields), together, scale=scale),
        {
            p.name: attribute(made, row, scale=scale, longest=1)
            for p, made, row in zip(place, fields, known, strict=True)
        },
        variance,
        variance / plain,
        group_size,
        groups,
    )


def _not_run(objective: str, group_size: int, claim: Claim) -> LossReport:
    return LossReport(objective, (claim,), None, {}, float("nan"), float("nan"), group_size, 0)


def _expected_ascent(function: Loss, world: World, size: int) -> tuple[list[Float[Tensor, " D"]], float, int]:
    """Return minus the expected gradient of each problem, the summed variance, and the groups evaluated."""
    fields, variance, groups = [], 0.0, 0
    for number, problem in enumerate(world):

        def gradient(members: Tensor, number: int = number) -> Tensor:
            return slope(function, make_batch(world, [(number, members)])).flatten(1)

        made = group_moments(gradient, problem.sampler_logp, problem.jacobian, size=size)
        fields.append(-made.mean)
        variance, groups = variance + made.variance, groups + made.evaluations
    return fields, variance, groups


def _leave_one_out_variance(world: World, size: int) -> list[float]:
    variances = []
    for problem in world:
        logp = problem.tree.token_logp(problem.logits)
        along = problem.jacobian.view(*logp.shape, -1, problem.logits.numel())
        table = problem.tree.next_logp(problem.logits)[problem.tree.states].exp()
        chosen = torch.nn.functional.one_hot(problem.tree.responses, table.shape[-1]).to(table.dtype)
        score = torch.einsum("mtv,mtvd->md", chosen - table, along)
        variances.append(leave_one_out_moments(logp.sum(1), problem.reward, score).variance(size))
    return variances


def _unbiased(fields: list[Float[Tensor, " D"]], world: World, terms: dict[str, float], objective: str) -> Claim:
    """I1: the expected update is the gradient of the declared objective."""
    stated = objective_gradient(terms, world)
    made = torch.cat(fields) / len(world)
    error = float((made - stated).norm() / stated.norm())
    detail = (
        f"expected update against the gradient of {objective}: relative error {error:.2e} (tolerance {TOLERANCE:.0e})"
    )
    if error <= TOLERANCE:
        return Claim("I1 expected gradient", Verdict.HOLDS, detail)
    worst = int((made - stated).abs().argmax())
    where, width = divmod(worst, world[0].logits.numel())
    row, token = divmod(width, world[0].logits.shape[1])
    witness = (
        f"worst weight: problem {world[where].name!r}, logit of token {token} at prefix {row}: expected update "
        f"{float(made[worst]):.6g}, gradient {float(stated[worst]):.6g}"
    )
    return Claim("I1 expected gradient", Verdict.DISAGREES, detail, (witness,))


def _calls(function: Loss, world: World, size: int) -> Claim:
    found = side_effects(function, make_batch(world, _groups(world, size)))
    if found:
        return Claim("pure", Verdict.DISAGREES, "a loss must depend on its arguments alone", tuple(found))
    return Claim("pure", Verdict.HOLDS, "same value twice, inputs unchanged, no global random numbers")


def _groups(world: World, size: int) -> list[Group]:
    """Return one group of each problem, with short and long, right and wrong responses in it."""
    return [
        (number, torch.arange(size).mul(3).add(number) % len(problem.tree.path)) for number, problem in enumerate(world)
    ]


def _structure(function: Loss, world: World, size: int) -> list[Claim]:
    """Check what must hold on every batch, on one with several lengths."""
    groups = _groups(world, size)
    whole = make_batch(world, groups)
    base = slope(function, whole)
    order = torch.arange(len(whole.reward)).flip(0).roll(1)
    parts = torch.cat([slope(function, make_batch(world, [group])) for group in groups]) / len(groups)
    claims = [_masked_positions_are_inert(function, whole, base)]
    claims.append(
        _equal(
            "I4 order of rows",
            slope(function, whole.take(order)),
            base[order],
            whole.take(order),
            "rows in another order, with their group ids, give each row the same gradient",
        )
    )
    claims.append(
        _equal("I2 partition", parts, base, whole, "a batch of groups gives the mean of its groups' gradients")
    )
    return claims


def _masked_positions_are_inert(function: Loss, whole: Batch, base: Float[Tensor, "B T V"]) -> Claim:
    """I3: what stands where a response is over, and how far the batch is padded, changes nothing."""
    detail = "values under the mask, NaN included, and more padding change no gradient"
    variants = {f"{value} under the mask": dataclasses.replace(whole, padding=value) for value in PADDINGS}
    variants["one more padded position"] = _wider(whole)
    for name, batch in variants.items():
        try:
            made = slope(function, batch)
        except SubjectError as error:
            return Claim("I3 masked positions", Verdict.DISAGREES, detail, (f"with {name}: {error}",))
        made = made[:, : whole.mask.shape[1]]
        found = _equal("I3 masked positions", made * whole.mask[..., None], base * whole.mask[..., None], whole, detail)
        if found.verdict is not Verdict.HOLDS:
            return dataclasses.replace(found, findings=tuple(f"with {name}: {line}" for line in found.findings))
    return Claim("I3 masked positions", Verdict.HOLDS, detail)


def _wider(batch: Batch) -> Batch:
    """Return the batch with one more padded position."""

    def pad(tensor: Tensor) -> Tensor:
        return torch.cat([tensor, torch.zeros_like(tensor[:, :1])], dim=1)

    names = ("logits", "logits_old", "logits_ref", "logits_sampler", "tokens", "mask", "value")
    parts: dict[str, Any] = {name: pad(getattr(batch, name)) for name in names}
    scored = torch.cat([batch.scored, torch.ones_like(batch.scored[:, :1])], dim=1)
    return dataclasses.replace(batch, **parts, scored=scored)


def _equal(name: str, made: Tensor, expected: Tensor, batch: Batch, detail: str) -> Claim:
    gap = (made - expected).abs().flatten(1).amax(1)
    scale = float(expected.abs().max())
    if bool((gap <= TOLERANCE * (scale or 1.0)).all()):
        return Claim(name, Verdict.HOLDS, detail)
    row = int(gap.nan_to_num(nan=float("inf")).argmax())
    length = int(batch.mask[row].sum())
    witness = (
        f"row {row}, response {batch.tokens[row, :length].tolist()} with reward {float(batch.reward[row]):.3g} in "
        f"group {int(batch.group[row])}: its gradient differs by {float(gap[row]):.3g}"
    )
    return Claim(name, Verdict.DISAGREES, detail, (witness,))
