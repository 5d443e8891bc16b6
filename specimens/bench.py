"""What a specimen is, and what the bench asks of it.

Both forms go through one check of :mod:`assay.audit`. The wrong form is *caught* when the check disagrees and names
the invariant that the report is filed under; the right form must hold. A wrong form that only crashes is not caught:
its check could not run.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.audit.check import INVARIANTS, Check
from assay.verdicts import Verdict
from specimens.lists import Bug, Dismissed

NOT_FAMILIES = {"__main__", "bench", "lists", "table"}


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
        report: repository and number, as ``nonbugs.jsonl`` has them first; more reports of the same may follow.
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


@dataclass(frozen=True)
class Collection:
    """What the modules of this package hold.

    Attributes:
        specimens: of every decidable report.
        nonbugs: reports that were no bugs.
        undecidable: why, by identifier.
    """

    specimens: tuple[Specimen, ...]
    nonbugs: tuple[NonBug, ...]
    undecidable: Mapping[str, str]


@dataclass(frozen=True)
class Bench:
    """All results.

    Attributes:
        results: of the specimens, in the order of the list.
        nonbugs: checks of the reports that were no bugs, by the first report of each line.
        undecidable: why, by identifier.
        gaps: decidable reports without a specimen, or with several, undecidable ones without a reason, and reports
            that were no bugs without a form.
        forms: how many distinct wrong forms the specimens have; reports of the same fault share one.
    """

    results: tuple[Result, ...]
    nonbugs: Mapping[str, tuple[Check, ...]]
    undecidable: Mapping[str, str]
    gaps: tuple[str, ...]
    forms: int = 0

    @property
    def passes(self) -> bool:
        """Return whether nothing is missed, nothing raises a false alarm and nothing is left out."""
        quiet = all(check.verdict is Verdict.HOLDS for checks in self.nonbugs.values() for check in checks)
        return quiet and not self.gaps and all(made.caught and not made.false_alarm for made in self.results)


def collect() -> Collection:
    """Gather ``SPECIMENS``, ``NONBUGS`` and ``UNDECIDABLE`` of every module beside this one."""
    package = Path(__file__).parent
    names = [module.name for module in pkgutil.iter_modules([str(package)]) if module.name not in NOT_FAMILIES]
    modules = [importlib.import_module(f"specimens.{name}") for name in names]
    reasons: dict[str, str] = {}
    for module in modules:
        reasons |= getattr(module, "UNDECIDABLE", {})
    return Collection(
        tuple(made for module in modules for made in getattr(module, "SPECIMENS", ())),
        tuple(made for module in modules for made in getattr(module, "NONBUGS", ())),
        reasons,
    )


def gaps(collection: Collection, bugs: Mapping[str, Bug], dismissed: Mapping[str, Dismissed]) -> tuple[str, ...]:
    """Return where the specimens and the two lists do not match."""
    held = Counter(made.bug for made in collection.specimens)
    found = [f"{name} is not in the list" for name in (held.keys() | collection.undecidable.keys()) - bugs.keys()]
    for bug in bugs.values():
        if bug.exact_decidable and held[bug.id] != 1:
            found.append(f"{bug.id} is decidable and has {held[bug.id]} specimens, not 1")
        if not bug.exact_decidable and (held[bug.id] or not collection.undecidable.get(bug.id)):
            found.append(f"{bug.id} is undecidable: need a reason and no specimen")
        if bug.exact_decidable and bug.id in collection.undecidable:
            found.append(f"{bug.id} is decidable and is given a reason why not")
    shown = {line_of(made, dismissed) for made in collection.nonbugs}
    found += [f"{report} was no bug and has no form" for report in dismissed.keys() - shown]
    found += [f"{report} is not among the reports that were no bugs" for report in shown - dismissed.keys()]
    return tuple(sorted(found))


def line_of(nonbug: NonBug, dismissed: Mapping[str, Dismissed]) -> str:
    """Return the first report of the line that a form belongs to; its own where there is no such line."""
    report = nonbug.report.replace(";", ",").split(",")[0]
    return next((entry.report for entry in dismissed.values() if report in (entry.report, *entry.also)), report)


def examine(specimen: Specimen, invariant: str) -> Result:
    """Put both forms of a specimen through its check."""
    wrong, right = (put(specimen.check, form, invariant) for form in (specimen.wrong, specimen.right))
    return Result(specimen.bug, invariant, wrong, right)


def put(check: Callable[[Any], Check], form: Any, invariant: str) -> Check:
    """Put one form through a check; one that raises instead of answering could not run."""
    try:
        return check(form)
    except Exception as error:
        detail = f"the check raised {type(error).__name__}: {error}"
        return Check(f"{invariant} {INVARIANTS[invariant]}", Verdict.COULD_NOT_RUN, detail)


def run(
    collection: Collection, bugs: Mapping[str, Bug], dismissed: Mapping[str, Dismissed], *, only: Sequence[str] = ()
) -> Bench:
    """Put every specimen and every non-bug through its check.

    Args:
        collection: what there is.
        bugs: the list.
        dismissed: the list of those that were none.
        only: invariants to keep to, without the reports that were no bugs; none means everything.
    """
    wanted = set(only) or set(INVARIANTS)
    bugs_kept = {name: bug for name, bug in bugs.items() if bug.invariant in wanted}
    chosen = Collection(
        tuple(made for made in collection.specimens if made.bug in bugs_kept or made.bug not in bugs),
        () if only else collection.nonbugs,
        {name: why for name, why in collection.undecidable.items() if name in bugs_kept or name not in bugs},
    )
    order = list(bugs_kept)
    listed = sorted(
        (made for made in chosen.specimens if made.bug in bugs_kept), key=lambda made: order.index(made.bug)
    )
    checks: dict[str, tuple[Check, ...]] = {}
    for made in chosen.nonbugs:
        report = line_of(made, dismissed)
        checks[report] = (*checks.get(report, ()), put(made.check, made.form, "I1"))
    return Bench(
        tuple(examine(made, bugs_kept[made.bug].invariant) for made in listed),
        {report: checks[report] for report in sorted(checks, key=[*dismissed, *checks].index)},
        chosen.undecidable,
        gaps(chosen, bugs_kept, {} if only else dismissed),
        len({id(made.wrong) for made in listed}),
    )
