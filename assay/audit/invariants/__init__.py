"""The checks of the fourteen invariants, each on the narrowest subject it needs, each to be called alone.

Every one returns a :class:`assay.audit.check.Check` and raises nothing about its subject: what a subject does wrong,
or that it cannot be used, is the verdict.
"""

from __future__ import annotations

from collections.abc import Callable

from assay.audit.check import Check
from assay.audit.invariants.alignment import row_alignment
from assay.audit.invariants.buffering import buffered
from assay.audit.invariants.expected import expected_gradient
from assay.audit.invariants.fixed_points import fixed_points, reference_after_restart
from assay.audit.invariants.freshness import freshness
from assay.audit.invariants.groups import group_semantics
from assay.audit.invariants.independence import rows_are_independent
from assay.audit.invariants.liveness import liveness
from assay.audit.invariants.mask_truth import mask_is_truth
from assay.audit.invariants.masking import masked_inert
from assay.audit.invariants.metrics import best_checkpoint, evaluation, majority
from assay.audit.invariants.parity import parity
from assay.audit.invariants.partition import partition
from assay.audit.invariants.resume import resume, same_state
from assay.audit.invariants.scoring import scorer_agrees, statistic_agrees
from assay.audit.invariants.seeds import seeds
from assay.audit.invariants.verifiers import verifier
from assay.errors import InputError

CHECKS: dict[str, tuple[Callable[..., Check], ...]] = {
    "I1": (expected_gradient,),
    "I2": (partition,),
    "I3": (masked_inert, mask_is_truth, rows_are_independent),
    "I4": (group_semantics,),
    "I5": (liveness,),
    "I6": (fixed_points, reference_after_restart),
    "I7": (freshness, buffered),
    "I8": (scorer_agrees, statistic_agrees),
    "I9": (verifier,),
    "I10": (evaluation, majority, best_checkpoint),
    "I11": (resume, same_state),
    "I12": (seeds,),
    "I13": (parity,),
    "I14": (row_alignment,),
}
"""The checks of each invariant; its number alone stands for the first."""


def find_check(name: str) -> Callable[..., Check]:
    """Return the check of a name such as ``"masked_inert"``, or the first of a number such as ``"I3"``.

    Raises:
        InputError: there is none.
    """
    every = {check.__name__: check for checks in CHECKS.values() for check in checks}
    found = CHECKS[name][0] if name in CHECKS else every.get(name)
    if found is None:
        known = ", ".join(f"{number} {check.__name__}" for number, checks in CHECKS.items() for check in checks)
        raise InputError(f"invariant {name!r}: expected one of {known}")
    return found
