"""The report of a run: one HTML file, readable offline and without scripts."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from assay.report import budget, notation, plots, prose, remarks
from assay.report.read import read_run
from assay.report.record import POINTS, SPLITS, Run


def build_page(directory: Path) -> str:
    """Return the HTML report of a finished run.

    The page depends on the bytes of the run's files alone: the same files give the same page, whenever and wherever it
    is built. Everything recorded is escaped; nothing in the page is executed or fetched.

    Args:
        directory: a finished run. ``SHA256SUMS`` and ``report.html`` are not read, since they are written afterwards.

    Raises:
        RunError: a file is missing or cannot be read.
        EvidenceError: a file cannot be parsed, or an entry is missing or of the wrong kind.
    """
    return render(read_run(Path(directory)))


def render(run: Run) -> str:
    """Return the page about a run that has been read."""
    lines = budget.budget_lines(run)
    template = environment().get_template("page.html.j2")
    return template.render(
        run=run,
        splits=SPLITS,
        points=POINTS,
        estimator=prose.estimator_in_words(run),
        headline=prose.headline_in_words(run),
        result=prose.result_in_words(run),
        intervals=prose.intervals_in_words(run),
        budget=lines,
        budget_words=prose.budget_in_words(run, lines),
        time_words=prose.time_in_words(run),
        charts=plots.draw_charts(run),
        participation=prose.participation_in_words(run),
        zero_signal=prose.zero_signal_in_words(run),
        reference=prose.reference_in_words(run),
        shows=remarks.what_it_shows(run),
        does_not_show=remarks.what_it_does_not_show(run),
    )


@cache
def environment() -> Environment:
    """Return what templates are rendered in: escaping on, an undefined name an error, numbers written one way each."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "percent": notation.percent,
        "in_points": notation.points,
        "decimals": notation.decimals,
        "measured": notation.measured,
        "significant": notation.significant,
        "count": notation.count,  # in place of jinja's own, which counts items
    }
    made.globals |= {"percent_range": notation.percent_range, "counted": notation.counted}
    return made
