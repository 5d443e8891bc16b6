"""The expected ascent of a loss in a world: over every response, over classes of them, or, past the budget, sampled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.call import Loss, touches_logits
from assay.audit.check import foreign
from assay.audit.slopes import ALONE, LossSlopes, atoms_of
from assay.errors import InputError
from assay.tree.groups import EVALUATION_BUDGET, SYMMETRY_TOLERANCE, Atoms, batch_moments, count_batches
from assay.tree.sampled import SampledMoments, sampled_moments
from assay.tree.world import World, by_problem

Accept = Callable[[Float[Tensor, " G"]], bool]
"""Says of a group's rewards whether the group is used; one that is not is drawn again."""


@dataclass(frozen=True)
class Design:
    """How batches are made.

    Attributes:
        sizes: responses in the group of each problem of the world.
        prompts: groups in a batch: 1, or one of every problem.
        accept: which groups are used; None uses all.
        budget: most batches to enumerate.
        tolerance: relative, of the checks that a shortcut is allowed.
    """

    sizes: tuple[int, ...]
    prompts: int = 1
    accept: Accept | None = None
    budget: int = EVALUATION_BUDGET
    tolerance: float = SYMMETRY_TOLERANCE

    @property
    def batches(self) -> list[tuple[int, ...]]:
        """Return the problems of each kind of batch."""
        every = tuple(range(len(self.sizes)))
        return [every] if self.prompts == len(every) else [(number,) for number in every]


@dataclass(frozen=True)
class Part:
    """What a loss ascends on average in one kind of batch.

    Attributes:
        problems: that a batch holds a group of, by number.
        ascent: minus the expected gradient over their weights.
        variance: trace of the covariance.
        exactness: what was gone through, in words.
        sampled: the intervals, when it could not be enumerated.
    """

    problems: tuple[int, ...]
    ascent: Float[Tensor, " D"]
    variance: float
    exactness: str
    sampled: SampledMoments | None = None


@dataclass(frozen=True)
class Expectation:
    """What a loss ascends on average.

    Attributes:
        ascent: minus its expected gradient over the weights of every problem, meaned over the problems.
        variance: of one group of each problem, added up: traces of covariances, in units of one group's gradient.
        parts: by kind of batch.
    """

    ascent: Float[Tensor, " D"]
    variance: float
    parts: tuple[Part, ...]

    @property
    def sampled(self) -> bool:
        """Return whether a part could not be enumerated."""
        return any(part.sampled is not None for part in self.parts)

    @property
    def exactness(self) -> str:
        """Return what was gone through, in words."""
        texts = dict.fromkeys(part.exactness for part in self.parts)
        return "; ".join(f"{text}{' each' if len(texts) < len(self.parts) else ''}" for text in texts)


def expected_ascent(loss: Loss, world: World, design: Design, stated: Float[Tensor, " D"] | None = None) -> Expectation:
    """Return the expected ascent of a loss.

    Args:
        loss: called by parameter name.
        world: its problems.
        design: how batches are made.
        stated: what should be ascended, meaned over the problems; without it nothing is sampled.

    Raises:
        SubjectError: the loss cannot be used.
        DependenceError: it depends on the order of a group.
        InputError: there are more batches than the budget, and they cannot be sampled.
    """
    parts = tuple(_part(loss, world, design, problems, stated) for problems in design.batches)
    joint = design.prompts == len(world) and len(world) > 1
    ascent = torch.cat([part.ascent for part in parts]) / (1 if joint else len(world))
    variance = sum(part.variance for part in parts) * (len(world) ** 2 if joint else 1)
    return Expectation(ascent, variance, parts)


def _part(
    loss: Loss, world: World, design: Design, problems: tuple[int, ...], stated: Float[Tensor, " D"] | None
) -> Part:
    """Return the expected ascent of one kind of batch, over the weights of its problems, not meaned over kinds."""
    sizes = [design.sizes[number] for number in problems]
    logits = touches_logits(loss)
    every = [atoms_of(world, number, logits=logits) for number in problems]

    def accept(place: int, members: Tensor) -> bool:
        assert design.accept is not None
        return bool(foreign("accept", design.accept, world[problems[place]].reward[members]))

    def enumerated(atoms: list[Atoms], what: str) -> Part:
        joint = count_batches([len(part.chance) for part in atoms], sizes) > ALONE
        slopes = LossSlopes(loss, world, problems, sizes, joint=joint, tolerance=design.tolerance)
        rule = None if design.accept is None else accept
        made = batch_moments(slopes, atoms, sizes, accept=rule, budget=design.budget, symmetry=design.tolerance)
        of = " and ".join(f"{size} of {len(part.chance)} {what}" for part, size in zip(atoms, sizes, strict=True))
        shared = f", in joint calls checked on {slopes.checked:,} of them" if slopes.checked else ""
        return Part(problems, -made.mean, made.variance, f"{made.evaluations:,} multisets of {of}{shared}")

    if count_batches([len(part.chance) for part in every], sizes) <= design.budget:
        return enumerated(every, "responses")
    if not logits:
        classes = [atoms_of(world, number, logits=False, by_class=True) for number in problems]
        try:
            return enumerated(classes, "classes")
        except InputError:
            pass  # the classes are too many as well, or the loss sees more of a response than its class
    if design.accept is not None:
        raise InputError("more groups than the budget, and groups that are drawn again cannot be sampled")
    if stated is None:
        raise InputError("more groups than the budget, and nothing to compare samples with")
    goal = stated_part(stated, world, problems)
    slopes = LossSlopes(loss, world, problems, sizes, joint=True, tolerance=design.tolerance)
    made = sampled_moments(slopes, every, sizes, goal)
    exactness = f"{made.batches:,} batches of {' and '.join(map(str, sizes))} sampled, nothing enumerated"
    return Part(problems, -made.mean, made.variance, exactness, made)


def stated_part(stated: Float[Tensor, " D"], world: World, problems: tuple[int, ...]) -> Float[Tensor, " P"]:
    """Return what one kind of batch should ascend, of what all should ascend meaned over the problems."""
    parts = by_problem(stated, world)
    return torch.cat([parts[number] for number in problems]) * (len(world) if len(problems) < len(world) else 1)
