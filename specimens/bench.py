"""What a specimen is, and what the bench asks of it.

Both forms go through one check of :mod:`assay.audit`. The wrong form is *caught* when the check disagrees and names
the invariant that the report is filed under; the right form must hold. A wrong form that only crashes is not caught:
its check could not run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from assay.audit.check import Check
from assay.verdicts import Verdict


@dataclass(frozen=True)
class Specimen:
    """One public report.

    Attributes:
        bug: its identifier in ``bugs.jsonl``.
        check: a general check of ``assay.audit``, with the case it is tried on filled in.
        wrong: the form that was shipped or proposed, in our own words.
        right: the form that replaced it, or should have.
    """

    bug: str
    check: Callable[[Any], Check]
    wrong: Any
    right: Any


@dataclass(frozen=True)
class NonBug:
    """A report that was no bug: the reported form must hold.

    Attributes:
        report: repository and number, as the list has them.
        check: a general check, with the case it is tried on filled in.
        form: what was reported.
    """

    report: str
    check: Callable[[Any], Check]
    form: Any


@dataclass(frozen=True)
class Result:
    """What the bench found about one specimen.

    Attributes:
        bug: its identifier.
        invariant: the one the report is filed under.
        wrong: the check of the wrong form.
        right: the check of the right form.
    """

    bug: str
    invariant: str
    wrong: Check
    right: Check

    @property
    def caught(self) -> bool:
        """Return whether the wrong form was flagged, by the invariant it breaks."""
        return self.wrong.verdict is Verdict.DISAGREES and self.wrong.invariant == self.invariant

    @property
    def false_alarm(self) -> bool:
        """Return whether the right form did not pass."""
        return self.right.verdict is not Verdict.HOLDS


def examine(specimen: Specimen, invariant: str) -> Result:
    """Put both forms of a specimen through its check."""
    return Result(specimen.bug, invariant, specimen.check(specimen.wrong), specimen.check(specimen.right))
