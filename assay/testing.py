"""Assertions for other people's test suites: ``from assay.testing import assert_unbiased, assert_invariant``.

They raise ``AssertionError`` with the whole report, also where the audit could not run: what was not checked has not
passed.
"""

from __future__ import annotations

from typing import Any

from assay.audit.call import Loss
from assay.audit.check import Check
from assay.audit.invariants import find_check
from assay.audit.loss_report import LossReport
from assay.audit.losses import loss as audit_loss
from assay.audit.subjects import Subject
from assay.verdicts import Verdict


def assert_unbiased(loss: Loss | Subject, *, objective: str | None = None, **options: Any) -> LossReport:
    """Assert that a loss's expected gradient is that of its objective, and that every structural claim holds.

    Args:
        loss: called by parameter name; returns a scalar to minimise.
        objective: such as ``"reward - 0.03*kl"``; None takes the subject's own, or ``"reward"``.
        options: handed to :func:`assay.audit.loss`: ``group_size``, ``world``, ``advantage``, ``prompts``.

    Returns:
        The report, for further assertions.

    Raises:
        AssertionError: a claim disagrees or could not run.
    """
    report = audit_loss(loss, objective=objective, **options)
    if not report.holds:
        raise AssertionError(str(report))
    return report


def assert_invariant(name: str, subject: Any, /, *arguments: Any, **options: Any) -> Check:
    """Assert that one of the fourteen invariants holds for the narrowest subject it needs.

    Args:
        name: a check such as ``"mask_is_truth"``, or the number of an invariant such as ``"I4"``, which stands for
            the first of its checks in :data:`assay.audit.invariants.CHECKS`.
        subject: an advantage function, a grader, a pair of samplers: what that check takes.
        arguments: handed to the check.
        options: handed to the check.

    Raises:
        AssertionError: it disagrees or could not run.
        InputError: there is no such check.
    """
    made = find_check(name)(subject, *arguments, **options)
    if made.verdict is not Verdict.HOLDS:
        raise AssertionError(f"{made}\nto mend it: {made.remedy}" if made.remedy else str(made))
    return made
