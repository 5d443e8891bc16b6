"""A language run as it is trained: the plan, each step, the responses of the current one. Plain lines off a terminal.

What a model answered is a stranger's text. It is clipped, and shown with every character spelled out that could move a
cursor, colour a line, or turn the reading direction of what stands beside it.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from assay.evidence.files import printable
from assay.runs.language.advice import advice
from assay.runs.language.train import Watch
from assay.tasks.selftest import SelfTest
from assay.tasks.text import TextTask
from assay.training.language.explain import advice as plan_advice
from assay.training.language.explain import plan_lines
from assay.training.language.recipe import LanguageRecipe
from assay.training.language.rollout import Rollout
from assay.types import Status, TextProblem

Record = Mapping[str, Any]

STEPS_SHOWN = 8
SAMPLES_SHOWN = 6
PLAIN_EVERY = 10
PROMPT_CELLS = 24
RESPONSE_CELLS = 160
STATUS_STYLES: dict[Status, str] = {
    "right": "green",
    "wrong": "red",
    "unparseable": "yellow",
    "timeout": "magenta",
    "error": "magenta",
}
PHASES = {"warmup": "warm-up", "rl": "RL"}


@dataclass(frozen=True)
class Sample:
    """One response of a step, as it is shown.

    Attributes:
        prompt: what was asked; its end is shown.
        text: what was answered; its beginning is shown.
        status: what the grader said.
        score: the reward; None where there is none.
    """

    prompt: str
    text: str
    status: Status
    score: float | None


def show_language_plan(console: Console, rows: Iterable[tuple[str, str]], output: str) -> None:
    """Print what a run will do and spend, before it starts.

    Args:
        console: where to.
        rows: a name and what the plan says of it, one a line.
        output: the run directory.
    """
    console.print(Text.assemble(("Plan", "bold"), f", into {printable(output)}"))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, text in rows:
        grid.add_row(Text(f"  {printable(name)}"), Text(printable(text)))
    console.print(grid)


class LanguageView:
    """Each step of a run: a live table on a terminal, a line a step elsewhere. Use it as a context.

    Args:
        console: where to.
        totals: how many steps each phase has, ``warmup`` and ``rl``.
    """

    def __init__(self, console: Console, totals: Mapping[str, int]) -> None:
        self._console = console
        self._totals = totals
        self._rows: deque[tuple[Record, float]] = deque(maxlen=STEPS_SHOWN)
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> LanguageView:
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def on_step(self, record: Record, seconds: float, samples: Sequence[Sample]) -> None:
        """Show one step.

        Args:
            record: as in ``metrics.jsonl``.
            seconds: that it took.
            samples: some of its responses.
        """
        self._rows.append((record, seconds))
        if self._console.is_terminal:
            self._live.start()
            self._live.update(self._screen(samples), refresh=True)
            return
        self._line(step_line(record, self._totals[record["phase"]], seconds))
        if record["step"] % PLAIN_EVERY == 0 or record["step"] == self._totals[record["phase"]]:
            for sample in samples[:SAMPLES_SHOWN]:
                self._line(f"    {_score(sample)} {sample.status}: {opening(sample.text, RESPONSE_CELLS)}")
            if words := self._advice():
                self._line(words)

    def _line(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def _advice(self) -> str | None:
        return advice([record for record, _ in self._rows])

    def _screen(self, samples: Sequence[Sample]) -> Group:
        phase = self._rows[-1][0]["phase"]
        rows = [row for row in self._rows if row[0]["phase"] == phase]
        parts = [steps_table(rows, phase, self._totals[phase])]
        if samples:
            parts.append(samples_table(samples[:SAMPLES_SHOWN]))
        return Group(*parts, *([Text(words, style="yellow")] if (words := self._advice()) else []))


class Spectator:
    """Shows a whole language run on a console: its problems, its plan, its steps, and what is done between them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._view: LanguageView | None = None

    def __enter__(self) -> Spectator:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pause()

    def watch(self, stopping: Callable[[], bool]) -> Watch:
        """Return who is told of the run, and asked whether to stop."""
        return Watch(self._on_task, self._on_test, self._on_start, self._on_step, self._on_work, stopping)

    def _on_task(self, task: TextTask) -> None:
        self._say(f"{task}")

    def _on_test(self, test: SelfTest) -> None:
        self._say(f"Verifier self-test on {test.problems} problems")
        for claim in test.claims:
            self._say(f"  {claim}")

    def _on_start(self, recipe: LanguageRecipe, place: Path, counts: Mapping[str, int]) -> None:
        rows = plan_lines(recipe, **counts)
        rows += [("advice", line) for line in plan_advice(recipe, **counts)]
        show_language_plan(self._console, rows, str(place))
        self._view = LanguageView(self._console, {"warmup": recipe.warmup.steps, "rl": recipe.rl.steps})

    def _on_step(self, record: Record, seconds: float, rollout: Rollout | None) -> None:
        assert self._view is not None
        self._view.on_step(record, seconds, [] if rollout is None else _samples(rollout))

    def _on_work(self, text: str) -> None:
        self._pause()
        self._say(f"{text} ...")

    def _pause(self) -> None:
        if self._view is not None:
            self._view.__exit__()

    def _say(self, text: str) -> None:
        self._console.print(Text(printable(text)), soft_wrap=True)


def _samples(rollout: Rollout) -> list[Sample]:
    """Return the responses of a batch as they are shown, one of each problem first."""
    rows = sorted(range(len(rollout.responses)), key=lambda row: _turn(rollout, row))
    return [
        Sample(
            _asked(rollout.problems[rollout.batch.group[row]]),
            rollout.responses[row].text,
            rollout.outcomes[row].status,
            rollout.outcomes[row].score,
        )
        for row in rows
    ]


def _turn(rollout: Rollout, row: int) -> tuple[int, int]:
    group = rollout.batch.group[row]
    return row - rollout.batch.group.index(group), group


def _asked(problem: TextProblem) -> str:
    return problem.prompt if isinstance(problem.prompt, str) else problem.prompt[-1]["content"]


def step_figures(record: Record, seconds: float) -> dict[str, str]:
    """Return what is shown of a step, by heading; empty where the record has nothing."""
    if record["phase"] == "warmup":
        figures = {"nll": _figure(record, "negative_log_likelihood", ".3f")}
    else:
        groups = record["groups"]
        figures = {
            "reward": _figure(record, "reward", ".3f"),
            "outcomes": ", ".join(f"{count} {status}" for status, count in record["outcomes"].items() if count),
            "informative": f"{groups['informative']} of {sum(groups.values())}",
            "length": _figure(record, "completions/mean_length", ".1f"),
            "KL": _figure(record, "kl", ".3f"),
            "gap": _figure(record, "sampling/sampling_logp_difference/max", ".1e"),
        }
    gradient = _figure(record, "grad_norm", ".2f") if record.get("stepped", True) else "no step"
    return {**figures, "grad": gradient, "seconds": f"{seconds:.1f}"}


def step_line(record: Record, total: int, seconds: float) -> str:
    """Return a step as one line."""
    figures = "  ".join(f"{name} {value}" for name, value in step_figures(record, seconds).items() if value)
    return f"{PHASES[record['phase']]} {record['step']}/{total}  {figures}"


def steps_table(rows: Sequence[tuple[Record, float]], phase: str, total: int) -> Table:
    """Return the last steps of a phase, newest last, each a record and its seconds."""
    table = Table(box=None, pad_edge=False, expand=True, title=f"{PHASES[phase]}, {total} steps", title_justify="left")
    table.add_column("step", justify="right", no_wrap=True)
    shown = [(record, step_figures(record, seconds)) for record, seconds in rows]
    for name in shown[0][1]:
        if name == "outcomes":
            table.add_column("right/wrong/other", justify="right", overflow="fold", ratio=1)
        else:
            table.add_column(name, justify="right", no_wrap=True)
    for record, figures in shown:
        if "outcomes" in figures:
            figures["outcomes"] = _counts(record["outcomes"])
        table.add_row(str(record["step"]), *(Text(value) for value in figures.values()))
    return table


def samples_table(samples: Sequence[Sample]) -> Table:
    """Return responses with their outcomes. The response is last: nothing stands behind it that it could displace."""
    table = Table(box=None, pad_edge=False, expand=True)
    table.add_column("outcome", no_wrap=True)
    table.add_column("reward", justify="right", no_wrap=True)
    table.add_column("prompt", no_wrap=True, min_width=PROMPT_CELLS)
    table.add_column("response", no_wrap=True, overflow="ellipsis", ratio=1)
    for sample in samples:
        table.add_row(
            Text(sample.status, style=STATUS_STYLES[sample.status]),
            _score(sample),
            Text(closing(sample.prompt, PROMPT_CELLS), style="dim"),
            Text(opening(sample.text, RESPONSE_CELLS)),
        )
    return table


def opening(text: str, cells: int) -> str:
    """Return the beginning of a stranger's text as one safe line of at most so many terminal cells."""
    return _isolated(_clipped(printable(text[: cells + 1]), cells))


def closing(text: str, cells: int) -> str:
    """Return the end of a stranger's text as one safe line of at most so many terminal cells."""
    return _isolated(_clipped(printable(text[-cells - 1 :])[::-1], cells)[::-1])


def _counts(outcomes: Mapping[str, int]) -> str:
    """Return how many were right, wrong, and neither."""
    right, wrong = outcomes["right"], outcomes["wrong"]
    return f"{right}/{wrong}/{sum(outcomes.values()) - right - wrong}"


def _figure(record: Record, name: str, form: str) -> str:
    value = record.get(name)
    return "" if value is None else format(value, form)


def _score(sample: Sample) -> str:
    return "none" if sample.score is None else f"{sample.score:g}"


def _clipped(text: str, cells: int) -> str:
    if cell_len(text) <= cells:
        return text
    widths = itertools.accumulate(cell_len(character) for character in text)
    return text[: sum(width < cells for width in widths)] + "…"


def _isolated(text: str) -> str:
    """Wrap text that has letters written from right to left, so that a terminal reorders nothing outside it."""
    turned = any(unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in text)
    return f"\N{FIRST STRONG ISOLATE}{text}\N{POP DIRECTIONAL ISOLATE}" if turned else text
