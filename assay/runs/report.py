"""The report of a finished run, built again from its files."""

from __future__ import annotations

from pathlib import Path

from assay.errors import RunError
from assay.evidence.files import read_regular
from assay.report.page import build_page
from assay.runs.directory import write_new
from assay.runs.kind import is_language_run


def page_of(place: Path) -> str:
    """Return the page of a finished run, whatever kind it is of."""
    if is_language_run(place):
        from assay.report.language.page import build_language_page

        return build_language_page(place)
    return build_page(place)


def report(directory: str | Path, to: str | Path | None = None) -> Path:
    """Build a run's report and return where it is.

    Args:
        directory: a finished run. It is never changed.
        to: where to write the page, which must not exist. None returns the page that the run already has.

    Raises:
        RunError: no such run, it has not finished, its files do not give the page that is there, or ``to`` lies
            inside the run or cannot be written.
        EvidenceError: a file of the run is damaged.
    """
    place = Path(directory)
    if not (place / "results.json").is_file():
        raise RunError(f"{place}: no finished run here (no results.json); check the path or finish it with --resume")
    page = page_of(place).encode()
    if to is not None and place.resolve() in Path(to).resolve().parents:
        raise RunError(f"{to}: lies inside the run, which is never changed; choose a place outside {place}")
    if to is not None:
        write_new(Path(to), page)
        return Path(to)
    there = place / "report.html"
    if read_regular(there) != page:
        raise RunError(
            f"{there}: is not the page that this version builds from the run's files; "
            "write a new one elsewhere with --to FILE"
        )
    return there
