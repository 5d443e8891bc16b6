"""Do a language run's numbers follow from its weights? Answered by measuring them again, or by training them again."""

from __future__ import annotations

import tempfile
from pathlib import Path

from assay.errors import AssayError
from assay.evidence.files import local, read_json, read_regular, read_rows
from assay.report.language.page import build_language_page
from assay.runs.environment import differences
from assay.runs.language.evaluate import measure_again
from assay.runs.language.layout import Layout
from assay.runs.language.measure import SPLITS
from assay.runs.language.train import environment, open_language_run, train_language
from assay.runs.results import deviations
from assay.verdicts import Claim, Verdict

TOLERANCE = 1e-9
"""Rates are counts over counts, and intervals follow from them."""
SHOWN = 10


def recompute_language(place: Path) -> Claim:
    """Reload every point's weights, draw its responses again at their addresses, and compare counts and page.

    On another build or machine a probability may round across a random number and a token change; then a difference
    shows nothing, and the claim says that it could not run.
    """
    name = "reproduced"
    try:
        recorded = read_json(Layout(place).results)
        findings = []
        for made in measure_again(place, SPLITS):
            for point, record in made.points.items():
                path = f"points.{point}.{made.split}."
                findings += deviations(recorded["points"][point][made.split], record, tolerance=TOLERANCE, path=path)
        if build_language_page(place).encode() != read_regular(Layout(place).report):
            findings.append("report.html: is not the page that the run's files give")
    except AssayError as error:
        return Claim(name, Verdict.COULD_NOT_RUN, local(error, place))
    return _judged(place, name, findings, "every point's responses drawn again from the weights give the same counts")


def replay_language(place: Path) -> Claim:
    """Train the same recipe again in a temporary directory, and compare every step and every result."""
    name = "replayed"
    try:
        recipe, _ = open_language_run(place)
        with tempfile.TemporaryDirectory(prefix="assay-replay-") as scratch:
            again = Layout(Path(scratch) / "run")
            train_language(recipe, again.root)
            rows = [read_rows(layout.metrics) for layout in (Layout(place), again)]
            findings = deviations(rows[0], rows[1], tolerance=0.0, sides=("recorded", "replayed"), path="metrics.")
            results = [read_json(layout.results) for layout in (Layout(place), again)]
            findings += deviations(results[0], results[1], tolerance=0.0, sides=("recorded", "replayed"))
    except AssayError as error:
        return Claim(name, Verdict.COULD_NOT_RUN, local(error, place))
    return _judged(place, name, findings, "trained again, every step and every result is the same")


def _judged(place: Path, name: str, findings: list[str], holds: str) -> Claim:
    if not findings:
        return Claim(name, Verdict.HOLDS, holds)
    recipe, _ = open_language_run(place)
    changed = differences(read_json(Layout(place).environment), environment(recipe))
    if changed:
        detail = f"{len(findings)} difference(s), which show nothing here: {'; '.join(changed)}"
        return Claim(name, Verdict.COULD_NOT_RUN, detail, tuple(findings[:SHOWN]))
    return Claim(name, Verdict.DISAGREES, f"{len(findings)} difference(s)", tuple(findings[:SHOWN]))
