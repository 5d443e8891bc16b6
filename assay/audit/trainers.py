"""The audit of a whole trainer: what it would apply on average, over every batch of groups that its sampler could draw.

The trainer runs its real path on prescribed responses and gives back the gradient of every parameter, whatever
it does in between: rewards, advantages, masks, micro-batches, reduction. Its expectation,

    E[g] = Σ_batches P(batch) g(batch) ,

is a sum over the multisets of responses to each problem, and is compared with the gradient of the declared objective
through the same policy. The probabilities and the objective are ours, from the policy's logits alone.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.audit.call import Group
from assay.audit.check import TOLERANCE, Check, SubjectError, answers, foreign, verdict_of
from assay.audit.gradients import Prompted, by_name, objective_field, trained, weight_name
from assay.audit.loss_report import describe
from assay.threads import one_thread
from assay.tree.attribution import Attribution, attribute
from assay.tree.fields import FIELDS, parse_objective
from assay.tree.groups import multisets
from assay.tree.world import TreeProblem
from assay.types import Policy
from assay.verdicts import Judged

Step = Callable[[Sequence[Group]], Mapping[str, Tensor]]
"""Makes a trainer take one step on a group of responses to every problem, given by number, without moving a weight;
returns the gradient that it would descend, by the parameter's name. One that it does not train may be absent."""
BUDGET = 5_000
"""Most batches to run a trainer on."""
_REPEATS = 5


@dataclass(frozen=True)
class TrainerReport(Judged):
    """What an audit found out about a trainer.

    Attributes:
        claims: one, I1, with the worst parameter and the batch that weighs most there.
        ascent: minus the expected gradient, by parameter; empty when it could not be run.
        ascends: that, in terms of known objectives; None when it could not be run.
    """

    claims: tuple[Check]
    ascent: Mapping[str, Tensor]
    ascends: Attribution | None

    @property
    def check(self) -> Check:
        """Return its one claim."""
        return self.claims[0]

    def in_words(self) -> list[str]:
        """Return what the trainer ascends, in words and coefficients."""
        return [] if self.ascends is None else [f"ascends: {describe(self.ascends)}"]

    def record(self) -> dict[str, Any]:
        """Return the report as plain values, ready for JSON."""
        return {
            "verdict": self.verdict,
            "claims": [dataclasses.asdict(self.check)],
            "ascends": None if self.ascends is None else dataclasses.asdict(self.ascends),
            "ascent": {name: made.tolist() for name, made in self.ascent.items()},
            "in_words": self.in_words(),
        }


@dataclass(frozen=True)
class TrainerSubject:
    """A trainer, and what is to be known about it before it is audited.

    Attributes:
        name: what the user typed, such as ``"trl.grpo_trainer"``.
        step: see :data:`Step`.
        policy: what it trains.
        problems: all of a batch.
        group_size: responses to each problem.
        objective: what it is said to ascend, where the user says nothing else.
        settings: every setting that was in force, defaults included.
        versions: of the packages whose code runs.
        reaches: which of the library's own code is executed.
        misses: what of its path is not.
        tolerance: relative; wider than ours where the library itself computes in float32.
        why: why the tolerance is that.
    """

    name: str
    step: Step
    policy: Policy
    problems: Sequence[Prompted]
    group_size: int
    objective: str = "reward"
    settings: Mapping[str, object] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    reaches: str = ""
    misses: str = ""
    tolerance: float = TOLERANCE
    why: str = "everything is float64"

    def audit(self, objective: str | None = None) -> TrainerReport:
        """Audit it against an objective, its own by default."""
        return trainer(
            self.step,
            self.policy,
            self.problems,
            objective=objective or self.objective,
            group_size=self.group_size,
            tolerance=self.tolerance,
            why=self.why,
        )


def trainer(
    step: Step,
    policy: Policy,
    problems: Sequence[Prompted],
    *,
    objective: str = "reward",
    group_size: int = 2,
    tolerance: float = TOLERANCE,
    why: str = "everything is float64",
    budget: int = BUDGET,
) -> TrainerReport:
    """Audit a trainer by running it on every batch of groups, one group a problem. It never raises for the trainer.

    Args:
        step: see :data:`Step`.
        policy: what the trainer trains; a batch is drawn from it and the objective is differentiated through it.
        problems: all of a batch.
        objective: what the trainer is said to ascend, meaned over the problems.
        group_size: responses to each problem, at least 1.
        tolerance: relative; wider where the trainer computes in float32.
        why: why it is that.
        budget: most batches to run.

    Raises:
        InputError: the objective is no sum of known ones.
    """
    terms = parse_objective(objective)
    found: list[tuple[dict[str, Tensor], Attribution]] = []

    @answers("I1")
    def check() -> Check:
        made, batches = _expectation(step, policy, problems, group_size, tolerance, budget)
        known = {name: objective_field(name, policy, problems) for name in (*terms, *FIELDS)}
        stated = torch.stack([value * known[name] for name, value in terms.items()]).sum(0)
        scale = max(float(row.norm()) for row in known.values())
        found.append(
            (by_name(policy, made), attribute(made, known, scale=scale, nearest=tuple(terms), exact=tolerance))
        )
        error = float((made - stated).norm() / (stated.norm() or 1.0))
        detail = f"expected update of {len(made):,} weights against the gradient of {objective}"
        wrong = not error <= tolerance
        findings = _witness(policy, problems, made, stated, batches) if wrong else []
        sizes = " x ".join(f"groups of {group_size} of {len(place.problem.reward)} responses" for place in problems)
        exactness = f"{len(batches):,} batches: {sizes}"
        return verdict_of("I1", detail, findings, error=error, tolerance=tolerance, why=why, exactness=exactness)

    with one_thread():
        verdict = check()
    return TrainerReport((verdict,), *(found[0] if found else ({}, None)))


def _expectation(
    step: Step, policy: Policy, problems: Sequence[Prompted], size: int, tolerance: float, budget: int
) -> tuple[Float[Tensor, " D"], list[tuple[float, list[Group], Tensor]]]:
    """Return the expected ascent, and every batch with its probability and its ascent."""
    count = math.prod(math.comb(len(place.problem.reward) + size - 1, size) for place in problems)
    if count > budget:
        raise SubjectError(f"{count:,} batches to run: more than the budget of {budget:,}; use fewer responses")
    batches, check_every = [], max(1, count // _REPEATS)
    for number, (chance, groups) in enumerate(_batches(problems, size)):
        made = _ascent(step, policy, groups)
        if number % check_every == 0:
            turned = [(problem, members.flip(0)) for problem, members in groups]
            _check_same(made, _ascent(step, policy, turned), groups, tolerance)
        batches.append((chance, groups, made))
    return torch.stack([chance * made for chance, _, made in batches]).sum(0), batches


def _batches(problems: Sequence[Prompted], size: int) -> Iterator[tuple[float, list[Group]]]:
    """Yield every batch, a multiset of responses a problem, with its probability."""
    choices = []
    for number, place in enumerate(problems):
        rows, orders = multisets(len(place.problem.reward), size)
        chances = orders * place.problem.sampler_logp[rows].sum(1).exp()
        choices.append([(float(chance), (number, row)) for chance, row in zip(chances, rows, strict=True)])
    for batch in itertools.product(*choices):
        yield math.prod(chance for chance, _ in batch), [group for _, group in batch]


def _ascent(step: Step, policy: Policy, groups: Sequence[Group]) -> Float[Tensor, " D"]:
    """Run the trainer on a batch and return minus its gradient, flattened in the order of the policy's parameters."""
    made = foreign("the trainer", step, groups)
    if not isinstance(made, Mapping):
        raise SubjectError(
            f"the trainer returned {type(made).__name__}; it must return one tensor a parameter, by name"
        )
    shapes = {name: parameter.shape for name, parameter in trained(policy).items()}
    for name, gradient in made.items():
        if name not in shapes:
            raise SubjectError(f"the trainer returned a gradient of {name!r}; the policy has {', '.join(shapes)}")
        if gradient.shape != shapes[name] or not bool(gradient.isfinite().all()):
            raise SubjectError(f"the trainer's gradient of {name!r} has another shape, or is not finite")
    parts = [made[name] if name in made else torch.zeros(shape) for name, shape in shapes.items()]
    return -torch.cat([part.detach().double().flatten() for part in parts])


def _check_same(made: Tensor, again: Tensor, groups: Sequence[Group], tolerance: float) -> None:
    gap = float((made - again).norm())
    if not gap <= tolerance * max(float(made.norm()), 1.0):
        members = [row.tolist() for _, row in groups]
        raise SubjectError(
            f"the trainer returns another gradient for responses {members} when each group is turned round and run "
            f"again: off by {gap:.3g}; it depends on their order or draws random numbers"
        )


def _witness(
    policy: Policy,
    problems: Sequence[Prompted],
    made: Float[Tensor, " D"],
    stated: Float[Tensor, " D"],
    batches: Sequence[tuple[float, list[Group], Tensor]],
) -> list[str]:
    """Name the weight that is furthest off, and the batch that weighs most in it."""
    worst = int((made - stated).abs().argmax())
    chance, groups, ascent = max(batches, key=lambda batch: batch[0] * abs(float(batch[2][worst])))
    values = f"expected update {float(made[worst]):.6g}, gradient {float(stated[worst]):.6g}"
    rows = [
        f"{problems[number].problem.name!r} {_words(problems[number].problem, members)}" for number, members in groups
    ]
    return [
        f"worst weight {weight_name(policy, worst)}: {values}",
        f"most of it, {chance:.3g} x {float(ascent[worst]):.6g}, comes from the batch {'; '.join(rows)}",
    ]


def _words(problem: TreeProblem, members: Int[Tensor, " G"]) -> str:
    lengths, tokens = problem.tree.lengths, problem.tree.responses
    rows = [
        f"{tokens[row, : int(lengths[row])].tolist()} with reward {float(problem.reward[row]):.3g}" for row in members
    ]
    return ", ".join(rows)
