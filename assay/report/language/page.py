"""The report of a language run: one HTML file, readable offline and without scripts."""

from __future__ import annotations

from pathlib import Path

from assay.report.language import names, prose
from assay.report.language.plots import draw_language_charts
from assay.report.language.read import read_language_run
from assay.report.language.record import SPLITS, LanguageRun
from assay.report.language.remarks import what_it_does_not_show
from assay.report.page import environment


def build_language_page(place: Path) -> str:
    """Return the HTML report of a finished language run.

    The page depends on the bytes of the run's files alone. Everything recorded, and what a model wrote above all, is
    escaped; nothing in the page is executed or fetched.

    Args:
        place: a finished run. ``SHA256SUMS`` and ``report.html`` are not read, since they are written afterwards.

    Raises:
        RunError: a file is missing or cannot be read.
        EvidenceError: a file cannot be parsed, or an entry is missing or of the wrong kind.
    """
    return render(read_language_run(Path(place)))


def render(run: LanguageRun) -> str:
    """Return the page about a run that has been read."""
    template = environment().get_template("language/page.html.j2")
    return template.render(
        run=run,
        splits=SPLITS,
        names={point: names.NAMES[point] for point in run.points},
        phases=names.PHASES,
        control_names=names.CONTROLS,
        kinds=names.KINDS,
        overlap_names=names.OVERLAP,
        claim_names=names.CLAIMS,
        tries=sorted({k for splits in run.points.values() for p in splits.values() for k in p.leading.passes} - {1}),
        verdict=prose.verdict,
        span=prose.span_of_points,
        headline=prose.headline_in_words(run),
        verdict_words=prose.verdict_in_words(run),
        format_words=prose.format_in_words(run),
        control_words=prose.controls_in_words(run),
        intervals=prose.intervals_in_words(run),
        policy_words=prose.policy_in_words(run),
        applied=prose.applied_in_words(run),
        signal=prose.signal_in_words(run) if run.rl else None,
        data_words=prose.data_in_words(run),
        grader=prose.grader_in_words(run),
        reference=prose.reference_in_words(run),
        reference_changed=prose.reference_changed(run),
        weights=prose.weight_digests(run),
        charts=draw_language_charts(run),
        does_not_show=what_it_does_not_show(run),
    )
