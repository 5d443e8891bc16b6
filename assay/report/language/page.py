"""The report of a language run: one HTML file, readable offline and without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from assay.report.language.plots import draw_language_charts
from assay.report.language.record import LanguageRun, read_language_run
from assay.report.notation import counted, percent
from assay.report.page import environment

NAMES = {"base": "Base model", "warmup": "After warm-up", "rl": "After RL"}
PHASES = {"warmup": "Warm-up", "rl": "RL", "total": "In all"}


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
    run = read_language_run(Path(place))
    return (
        environment()
        .get_template("language/page.html.j2")
        .render(
            run=run,
            names={point: NAMES[point] for point in run.points},
            phases=PHASES,
            headline=headline(run),
            charts=draw_language_charts(run),
            limits=list(limits(run)),
        )
    )


def headline(run: LanguageRun) -> str:
    """Return what the run came to in one sentence, of held-out problems."""
    first, last = (run.points[name]["test"] for name in ("base", run.last))
    before, after = first.sampled or first.greedy, last.sampled or last.greedy
    assert before is not None and after is not None  # a recipe asks for one of them
    return f"Held-out success went from {percent(before.rate)} to {percent(after.rate)}"


def limits(run: LanguageRun) -> Iterator[tuple[str, str]]:
    """Yield what the numbers do not show: a head and a sentence."""
    yield (
        "One training run",
        "Intervals are over problems and samples. How far another seed of training would end from here, none shows.",
    )
    yield (
        "These problems' population",
        f"Test problems come from the same data as training problems, {counted(run.sizes['test'], 'problem')} of them. "
        "Other kinds of problem are not measured.",
    )
    if "rl" in run.points and not run.controls:
        yield (
            "What the reward's content gave",
            "No matched control was trained. A gain can come from more of the same steps on a coin or on format alone "
            "(evaluation.controls).",
        )
    if not run.config.get("grading.format"):
        yield (
            "Format",
            "What counts as in format is the grader's own word; with a grader that only says right or wrong, every "
            "response is (grading.format).",
        )
    if run.overlap.get("near duplicates"):
        yield (
            "Near duplicates",
            f"{counted(run.overlap['near duplicates'], 'test problem')} resemble a training problem with the same "
            "answer; they were kept.",
        )
