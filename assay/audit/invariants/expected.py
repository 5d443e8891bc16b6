"""I1 alone: is the expected update the gradient of the declared objective?"""

from __future__ import annotations

import itertools

import torch

from assay.audit.call import Loss, NotFiniteError, make_batch, slope
from assay.audit.check import Check, SubjectError, answers, verdict_of
from assay.audit.losses import loss as audit_loss
from assay.tree.world import World, default_world
from assay.verdicts import Verdict


@answers("I1")
def expected_gradient(
    loss: Loss, *, objective: str = "reward", group_size: int = 2, world: World | None = None
) -> Check:
    """Check that a loss ascends what it is said to ascend, in expectation over every group of a small world.

    A loss that is not finite, or whose gradient is not, on a group that can be drawn has no finite expected gradient;
    that disagrees too.

    Args:
        loss: called with the parameters it names out of :data:`assay.audit.call.NAMES`; returns a scalar to minimise.
        objective: such as ``"reward - 0.03*kl"``; the names are in :data:`assay.tree.fields.OBJECTIVES`.
        group_size: responses in a group, at least 2.
        world: problems to audit in; None takes :func:`assay.tree.world.default_world`.

    Raises:
        InputError: the objective is no sum of known ones, or the group is too small.
    """
    report = audit_loss(loss, objective=objective, group_size=group_size, world=world, measure_curl=False)
    for claim in report.claims:
        if isinstance(claim, Check) and claim.invariant == "I1" and claim.verdict is not Verdict.COULD_NOT_RUN:
            return claim
    witness = _not_finite(loss, world or default_world(), group_size)
    if witness is None:
        raise SubjectError(report.claims[0].detail)
    detail = f"expected update against the gradient of {objective}: it is not finite"
    return verdict_of("I1", detail, (witness,), error=float("inf"))


def _not_finite(loss: Loss, world: World, size: int) -> str | None:
    """Return the first group on which the loss or its gradient is not finite; None where another fault comes first."""
    for number, problem in enumerate(world):
        for members in itertools.combinations_with_replacement(range(len(problem.tree.path)), size):
            drawn = torch.tensor(members)
            try:
                slope(loss, make_batch(world, [(number, drawn)]))
            except NotFiniteError as error:
                rows = zip(problem.tree.responses[drawn], problem.tree.lengths[drawn], strict=True)
                group = ", ".join(str(response[:length].tolist()) for response, length in rows)
                rewards = ", ".join(f"{value:.3g}" for value in problem.reward[drawn].tolist())
                return f"problem {problem.name!r}, responses {group} with rewards {rewards}: {error}"
            except SubjectError:
                return None
    return None
