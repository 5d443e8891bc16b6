"""Exact expectation and variance of a group estimator, from the loss alone.

Training applies the gradient of a loss *at fixed samples*. Its expectation is

    E[∇L] = Σ_batches P(batch) Σ_{i,k} (∂L/∂x_ik) ∇x_ik ,

where x is what the loss touches the policy through: a response's log-probabilities, or its logits. So it is enough
to collect ``∂L/∂x`` for every batch and to push the weighted sum through the policy once. A batch is one group, or a
group of each of several problems.

A loss that does not depend on the order of a group needs one evaluation for each multiset of members, with a
multinomial weight: for 9 responses and groups of 4 that is 495 evaluations in place of 6,561. If it sees a response
only through its class (the reward and the length, say), multisets of classes are enough: two classes and groups of
8 make 9. Neither is assumed: both are checked on the way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.errors import InputError

EVALUATION_BUDGET = 200_000
SYMMETRY_TOLERANCE = 1e-9
CHUNK = 512
LARGEST_GROUP = 170
_ORDERS_TRIED = 25
_CONTEXTS = 3


class DependenceError(InputError):
    """A loss depends on what it was taken not to: the order of a group, or more of a response than its class."""


@dataclass(frozen=True)
class Atoms:
    """What the members of a group are drawn from: the responses to one problem, or classes of them.

    Attributes:
        chance: probability of each of A atoms.
        response: a response of each atom, by number.
        members: all responses of each atom.
        jacobian: mean of ``∇x`` over an atom's responses, ``[A, K, D]``.
        spread: covariance of the rows of ``∇x`` within an atom, ``[A, K, K]``; None when every atom is one response.
    """

    chance: Float[Tensor, " A"]
    response: Int[Tensor, " A"]
    members: tuple[Int[Tensor, " _"], ...]
    jacobian: Float[Tensor, "A K D"]
    spread: Float[Tensor, "A K K"] | None = None


Slopes = Callable[[Sequence[Int[Tensor, "N _"]]], Float[Tensor, "N B K"]]
"""Given N batches, each a group of every problem by response numbers, return ``∂L/∂x`` of all their rows."""


@dataclass(frozen=True)
class BatchMoments:
    """Exact moments of a batch's gradient.

    Attributes:
        mean: expectation over the weights of all problems, one problem after another; minus it is what is ascended.
        variance: trace of the covariance.
        evaluations: batches that the loss was evaluated on.
    """

    mean: Float[Tensor, " D"]
    variance: float
    evaluations: int


def responses_as_atoms(logp: Float[Tensor, " M"], jacobian: Float[Tensor, "M K D"]) -> Atoms:
    """Return atoms that are the responses themselves; nothing is assumed about the loss.

    Args:
        logp: log-probability with which each response is drawn, in nats; -inf for one that never is.
        jacobian: ``∇x`` of each response.
    """
    drawn = (logp > float("-inf")).nonzero()[:, 0]
    return Atoms(logp[drawn].exp(), drawn, tuple(drawn[:, None]), jacobian[drawn])


def classes_as_atoms(
    logp: Float[Tensor, " M"], jacobian: Float[Tensor, "M K D"], classes: Float[Tensor, "M F"]
) -> Atoms:
    """Return atoms that are the classes of responses with equal features.

    Args:
        logp: log-probability with which each response is drawn, in nats.
        jacobian: ``∇x`` of each response.
        classes: what a loss may tell responses apart by, such as reward and length; rows are compared exactly.
    """
    _, member = torch.unique(classes, dim=0, return_inverse=True)
    rows = [(member == number).nonzero()[:, 0] for number in range(int(member.max()) + 1)]
    rows = [row[logp[row] > float("-inf")] for row in rows]
    rows = [row for row in rows if len(row)]
    shares = [logp[row].softmax(0) for row in rows]
    means = torch.stack(
        [torch.einsum("m,mkd->kd", share, jacobian[row]) for row, share in zip(rows, shares, strict=True)]
    )
    second = [
        torch.einsum("m,mkd,mld->kl", share, jacobian[row], jacobian[row])
        for row, share in zip(rows, shares, strict=True)
    ]
    return Atoms(
        torch.stack([logp[row].exp().sum() for row in rows]),
        torch.stack([row[0] for row in rows]),
        tuple(rows),
        means,
        torch.stack(second) - torch.einsum("akd,ald->akl", means, means),
    )


def multisets(atoms: int, size: int) -> tuple[Int[Tensor, "C G"], Float[Tensor, " C"]]:
    """Return each multiset of ``size`` atoms, sorted, and the number of ordered groups it stands for."""
    rows = torch.tensor(list(itertools.combinations_with_replacement(range(atoms), size))).view(-1, size)
    run, repeats = torch.ones(len(rows), dtype=torch.float64), torch.ones(len(rows), dtype=torch.float64)
    for column in range(1, size):
        run = torch.where(rows[:, column] == rows[:, column - 1], run + 1, 1.0)
        repeats = repeats * run
    return rows, float(math.factorial(size)) / repeats


def count_batches(atoms: Sequence[int], sizes: Sequence[int]) -> int:
    """Return how many batches of one group a problem there are, groups as multisets of so many atoms."""
    return math.prod(math.comb(count + size - 1, size) for count, size in zip(atoms, sizes, strict=True))


def batch_moments(
    slopes: Slopes,
    problems: Sequence[Atoms],
    sizes: Sequence[int],
    *,
    accept: Callable[[int, Int[Tensor, " G"]], bool] | None = None,
    budget: int = EVALUATION_BUDGET,
    symmetry: float = SYMMETRY_TOLERANCE,
) -> BatchMoments:
    """Return the exact mean and variance of a loss's gradient over all batches of one group a problem.

    Args:
        slopes: evaluates the loss.
        problems: what the members of each problem's group are drawn from.
        sizes: members of each problem's group, at least 1; they may differ.
        accept: says of a problem's number and a group's responses whether the group is used; one that is not is
            drawn again.
        budget: most batches to evaluate.
        symmetry: largest relative change of a member's gradient that still counts as none.

    Raises:
        InputError: there are more batches than ``budget``, or no group is accepted.
        DependenceError: the loss depends on the order of a group, or tells apart what was said to be one class.
    """
    count = count_batches([len(atoms.chance) for atoms in problems], sizes)
    if count > budget:
        raise InputError(f"{count:,} batches of groups of {tuple(sizes)}: more than the budget of {budget:,}")
    if max(sizes) > LARGEST_GROUP:
        raise InputError(f"groups of {max(sizes)}: the number of their orders overflows beyond {LARGEST_GROUP}")
    _check_classes(slopes, problems, sizes, symmetry)
    tables = [_groups(number, *made, accept) for number, made in enumerate(zip(problems, sizes, strict=True))]
    batches = torch.cartesian_prod(*[torch.arange(len(chance)) for _, chance in tables]).view(-1, len(tables))
    mean, square, stride = None, 0.0, max(1, len(batches) // _ORDERS_TRIED)
    for start in range(0, len(batches), CHUNK):
        chosen = batches[start : start + CHUNK]
        groups = [members[chosen[:, number]] for number, (members, _) in enumerate(tables)]
        chance = torch.stack([chances[chosen[:, number]] for number, (_, chances) in enumerate(tables)]).prod(0)
        slope = slopes([atoms.response[group] for atoms, group in zip(problems, groups, strict=True)])
        tried = torch.arange(len(chosen))[(torch.arange(len(chosen)) + start) % stride == 0]
        _check_symmetry(slopes, problems, [group[tried] for group in groups], slope[tried], symmetry)
        estimate, within = batch_gradients(problems, groups, slope)
        mean = chance @ estimate if mean is None else mean + chance @ estimate
        square += float(chance @ (estimate.square().sum(1) + within))
    assert mean is not None
    return BatchMoments(mean, square - float(mean @ mean), len(batches))


def _groups(
    number: int, atoms: Atoms, size: int, accept: Callable[[int, Int[Tensor, " G"]], bool] | None
) -> tuple[Int[Tensor, "C G"], Float[Tensor, " C"]]:
    """Return the groups of one problem as rows of atoms, and the probability of each."""
    rows, orders = multisets(len(atoms.chance), size)
    chance = orders * atoms.chance[rows].prod(1)
    if accept is not None:
        kept = torch.tensor([accept(number, atoms.response[row]) for row in rows])
        if not bool(kept.any()):
            raise InputError(f"no group of {size} responses to problem {number} is accepted")
        rows, chance = rows[kept], chance[kept] / chance[kept].sum()
    return rows, chance


def batch_gradients(
    problems: Sequence[Atoms], groups: list[Int[Tensor, "N _"]], slope: Float[Tensor, "N B K"]
) -> tuple[Float[Tensor, "N D"], Float[Tensor, " N"]]:
    """Return each batch's gradient, meaned over the responses of its atoms, and its variance within them."""
    parts, within, start = [], slope.new_zeros(len(slope)), 0
    for atoms, group in zip(problems, groups, strict=True):
        own = slope[:, start : start + group.shape[1]]
        parts.append(torch.einsum("ngk,ngkd->nd", own, atoms.jacobian[group]))
        if atoms.spread is not None:
            within = within + torch.einsum("ngk,ngkl,ngl->n", own, atoms.spread[group], own)
        start += group.shape[1]
    return torch.cat(parts, dim=1), within


def _other_members(atoms: Atoms, groups: Int[Tensor, "N G"]) -> Int[Tensor, "N G"]:
    """Return groups of the same atoms with other members of them, a different one in each place."""
    rows = [
        [int(atoms.members[atom][-1 - (row + place) % len(atoms.members[atom])]) for place, atom in enumerate(group)]
        for row, group in enumerate(groups.tolist())
    ]
    return torch.tensor(rows, dtype=torch.long).view(groups.shape)


def _check_classes(slopes: Slopes, problems: Sequence[Atoms], sizes: Sequence[int], tolerance: float) -> None:
    """Put every member of every class in the place of its representative, in a few batches: nothing may change."""
    for place, atoms in enumerate(problems):
        for number, members in enumerate(atoms.members):
            if len(members) == 1:
                continue
            for step in range(_CONTEXTS):
                batch = [
                    other.response[(number + step * torch.arange(size)) % len(other.response)]
                    for other, size in zip(problems, sizes, strict=True)
                ]
                batch[place] = batch[place].clone()
                batch[place][0] = members[0]
                if step and sizes[place] > 2:
                    batch[place][1] = members[0]  # one of its own class beside it, and others after
                batches = [group.repeat(len(members), 1) for group in batch]
                batches[place][:, 0] = members
                slope = slopes(batches)
                gap = (slope - slope[:1]).abs().flatten(1).amax(1)
                if not bool((gap <= tolerance * float(slope.abs().max())).all()):
                    worst = members[int(gap.argmax())]
                    raise DependenceError(
                        f"the loss depends on more of a response than its class: response {int(worst)} in the place "
                        f"of {int(members[0])} changes a gradient by {float(gap.max()):.3g}"
                    )


def _check_symmetry(
    slopes: Slopes,
    problems: Sequence[Atoms],
    groups: list[Int[Tensor, "N _"]],
    slope: Float[Tensor, "N B K"],
    tolerance: float,
) -> None:
    """Evaluate batches again with their groups turned round and other responses of the same atoms: each member's
    share must come out the same."""
    if not len(slope):
        return
    asked = [_other_members(atoms, group).flip(1) for atoms, group in zip(problems, groups, strict=True)]
    again = torch.cat(
        [part.flip(1) for part in torch.split(slopes(asked), [group.shape[1] for group in groups], dim=1)], dim=1
    )
    gap = (slope - again).abs().flatten(1).amax(1)
    bad = ~(gap <= tolerance * float(slope.abs().max()))
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        turned = " and ".join(str(group[row].tolist()) for group in asked)
        by_class = any(atoms.spread is not None for atoms in problems)
        what = "more of a response than its class, or on the order of a group" if by_class else "the order of a group"
        raise DependenceError(
            f"the loss depends on {what}: turning round responses {turned} changes a member's gradient by "
            f"{float(gap[row]):.3g}"
        )
