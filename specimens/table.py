"""What the bench prints: counts by kind and by invariant, then every miss and every false alarm with its witness."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from assay.audit.check import INVARIANTS, Check
from assay.verdicts import Verdict
from specimens.bench import Bench, Result
from specimens.lists import Bug, Dismissed

COLUMNS = ("specimens", "caught", "missed", "false alarms")
Counts = tuple[int, int, int, int]


def counts(results: Iterable[Result]) -> Counts:
    """Return how many there are, how many were caught and missed, and how many right forms did not pass."""
    made = list(results)
    caught = sum(result.caught for result in made)
    return len(made), caught, len(made) - caught, sum(result.false_alarm for result in made)


def by(key: Callable[[Bug], str], bench: Bench, bugs: Mapping[str, Bug]) -> dict[str, Counts]:
    """Return the counts of each class of reports that has a specimen."""
    classes: dict[str, list[Result]] = {}
    for result in bench.results:
        classes.setdefault(key(bugs[result.bug]), []).append(result)
    return {name: counts(results) for name, results in sorted(classes.items(), key=lambda pair: _rank(pair[0]))}


def show(bench: Bench, bugs: Mapping[str, Bug], dismissed: Mapping[str, Dismissed], console: Console) -> None:
    """Print the tables, what went wrong, and what cannot be decided."""
    by_invariant = {f"{name} {INVARIANTS[name]}": row for name, row in by(lambda b: b.invariant, bench, bugs).items()}
    for title, rows in (("kind", by(lambda bug: bug.kind, bench, bugs)), ("invariant", by_invariant)):
        _print_table(title, {**rows, "all": counts(bench.results)}, console)
        console.print()
    console.print(f"{len(bench.results)} reports, {bench.forms} distinct forms", markup=False, highlight=False)
    for line in problems(bench, bugs):
        console.print(line, markup=False, soft_wrap=True)
    quiet = sum(not _alarms(checks) for checks in bench.nonbugs.values())
    console.print(f"Reports that were no bugs: {quiet} of {len(bench.nonbugs)} hold.", markup=False, highlight=False)
    for report, checks in bench.nonbugs.items():
        named = ", ".join(f"{check.name} {check.verdict}" for check in checks)
        why = f": {dismissed[report].why}" if report in dismissed else ""
        console.print(f"  {report} ({named}){why}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"Not decidable on a small case: {len(bench.undecidable)}.", markup=False, highlight=False)
    for name, reason in sorted(bench.undecidable.items()):
        where = f"{bugs[name].repo}#{bugs[name].number}" if name in bugs else "not in the list"
        console.print(f"  {name} {where}: {reason}", markup=False, highlight=False, soft_wrap=True)
    console.print("passes" if bench.passes else "does not pass", style="green" if bench.passes else "bold red")


def problems(bench: Bench, bugs: Mapping[str, Bug]) -> list[str]:
    """Return a line for everything that keeps the bench from passing, with its witness."""
    lines = [f"gap: {gap}" for gap in bench.gaps]
    for result in bench.results:
        bug = bugs[result.bug]
        where = f"{bug.id} {bug.repo}#{bug.number}"
        if not result.caught:
            lines.append(f"missed: {where}, filed under {bug.invariant}: {_answer(result.wrong)}")
        if result.false_alarm:
            lines.append(f"false alarm: {where}: {_answer(result.right)}")
    for report, checks in bench.nonbugs.items():
        lines += [f"false alarm: {report}, no bug: {_answer(check)}" for check in _alarms(checks)]
    return lines


def record(bench: Bench, bugs: Mapping[str, Bug]) -> dict[str, Any]:
    """Return everything as plain values, for JSON."""
    return {
        "passes": bench.passes,
        "gaps": list(bench.gaps),
        "forms": bench.forms,
        "by_kind": _named(by(lambda bug: bug.kind, bench, bugs)),
        "by_invariant": _named(by(lambda bug: bug.invariant, bench, bugs)),
        "all": _named({"all": counts(bench.results)})["all"],
        "specimens": [
            {
                "bug": result.bug,
                "report": f"{bugs[result.bug].repo}#{bugs[result.bug].number}",
                "invariant": result.invariant,
                "caught": result.caught,
                "false_alarm": result.false_alarm,
                "wrong": _plain(result.wrong),
                "right": _plain(result.right),
            }
            for result in bench.results
        ],
        "nonbugs": {report: [_plain(check) for check in checks] for report, checks in bench.nonbugs.items()},
        "undecidable": dict(bench.undecidable),
    }


def _print_table(title: str, rows: Mapping[str, Counts], console: Console) -> None:
    if not console.is_terminal:
        width = max(len(name) for name in (title, *rows))
        for name, cells in {title: COLUMNS, **rows}.items():
            line = "  ".join(str(cell).rjust(len(head)) for cell, head in zip(cells, COLUMNS, strict=True))
            console.print(f"{name.ljust(width)}  {line}", markup=False, highlight=False, soft_wrap=True)
        return
    table = Table(title, *COLUMNS)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, (number, caught, missed, alarms) in rows.items():
        flagged = [f"[bold red]{count}[/]" if count else "0" for count in (missed, alarms)]
        table.add_row(escape(name), str(number), str(caught), *flagged, style="bold" if name == "all" else None)
    console.print(table)


def _alarms(checks: Iterable[Check]) -> list[Check]:
    return [check for check in checks if check.verdict is not Verdict.HOLDS]


def _answer(check: Check) -> str:
    witness = f"; {check.findings[0]}" if check.findings else ""
    return f"{check.name} {check.verdict}: {check.detail}{witness}"


def _plain(check: Check) -> dict[str, Any]:
    return {
        "check": check.name,
        "verdict": check.verdict.value,
        "detail": check.detail,
        "findings": list(check.findings),
        "error": check.error if check.error is None or abs(check.error) < float("inf") else None,
    }


def _named(rows: Mapping[str, Counts]) -> dict[str, dict[str, int]]:
    return {name: dict(zip(COLUMNS, row, strict=True)) for name, row in rows.items()}


def _rank(name: str) -> tuple[int, str]:
    """Sort invariants by number and everything else by name."""
    return (list(INVARIANTS).index(name) if name in INVARIANTS else 0, name)
