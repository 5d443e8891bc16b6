"""What the command line shows: the plan, progress, summaries, claims. Tables on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from assay.evidence.files import printable
from assay.training.config import Recipe, plan
from assay.verdicts import Claim, Verdict, overall

if TYPE_CHECKING:
    from assay.evaluation.point import PointEvaluation
    from assay.runs.compare import Comparison
    from assay.runs.evaluate import Evaluation

POINT_NAMES = {"init": "random initialisation", "warmup": "after warm-up", "rl": "after RL"}
STYLES = {Verdict.HOLDS: "green", Verdict.DISAGREES: "bold red", Verdict.COULD_NOT_RUN: "yellow"}
PLAIN_EVERY = 10


class PatientConsole(Console):
    """A console whose work goes on when its reader goes away: a run is in its directory, a verdict in the exit code."""

    def on_broken_pipe(self) -> None:
        """Say nothing more; rich would end the process with exit code 1, which means *disagrees*."""
        self.quiet = True
        silence_stdout()


def silence_stdout() -> None:
    """Send the rest of the output nowhere, since the flush at exit would fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_plan(console: Console, recipe: Recipe, output: str) -> None:
    """Print what a run will do and spend, before it starts."""
    budget, rl = plan(recipe), recipe.rl
    penalty = f" - {rl.beta} KL(policy to reference)" if rl.beta else ""
    console.print(f"[bold]Plan[/bold], seed {recipe.seed}, into {escape(output)}")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    grid.add_row("  problems", f"{recipe.task.train_problems} training, {recipe.task.test_problems} test, disjoint")
    grid.add_row(
        "  warm-up", f"{budget.warmup_steps} full-batch supervised steps, learning rate {recipe.warmup.learning_rate}"
    )
    grid.add_row("  RL", f"{_rl_line(recipe)}, learning rate {rl.learning_rate}")
    grid.add_row(
        "  ascends",
        f"mean over the step's {rl.problems_per_step} problems of E\\[reward]{penalty}, "
        + ("exactly" if rl.estimator == "exact" else "estimated without bias (leave-one-out baseline)"),
    )
    grid.add_row("  evaluation", f"{budget.evaluation_samples:,} samples under frozen weights, counted apart")
    console.print(grid)


def _rl_line(recipe: Recipe) -> str:
    budget, rl = plan(recipe), recipe.rl
    visits = _span(budget.visits_per_problem)
    if rl.estimator == "exact":
        return (
            f"{rl.steps} steps over all 100 trajectories of {rl.problems_per_step} problems; "
            f"{visits} visits a problem, none drawn"
        )
    return (
        f"{rl.steps} steps of {rl.problems_per_step} problems x {rl.num_generations} responses = "
        f"{budget.training_trajectories:,} trajectories; {visits} visits and "
        f"{_span(budget.trajectories_per_problem)} trajectories a problem"
    )


def _span(pair: tuple[int, int]) -> str:
    return f"{pair[0]}" if pair[0] == pair[1] else f"{pair[0]} to {pair[1]}"


class ProgressView:
    """The plan, then live progress: a bar on a terminal, a line every ten steps elsewhere.

    Use it as a context and hand :meth:`on_start` and :meth:`on_step` to the trainer.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = {"warmup": 0, "rl": 0}
        self._silent = 0
        self._progress = Progress(
            TextColumn("{task.fields[phase]:7}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[line]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("", phase="warm-up", line="", visible=False)

    def __enter__(self) -> ProgressView:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._progress.live.is_started:
            self._progress.stop()

    def on_start(self, recipe: Recipe, directory: Path) -> None:
        """Show the plan of the run that is about to begin or to go on."""
        show_plan(self._console, recipe, str(directory))
        self._total = {"warmup": recipe.warmup.steps, "rl": recipe.rl.steps}
        if self._console.is_terminal:
            self._progress.update(self._task, total=sum(self._total.values()), visible=True)
            self._progress.start()

    def on_step(self, record: dict[str, Any]) -> None:
        """Show one step's record."""
        phase, step = record["phase"], record["step"]
        self._silent += record.get("zero_signal_groups", 0)
        line = _step_line(record, self._silent)
        if self._console.is_terminal:
            done = step + (self._total["warmup"] if phase == "rl" else 0)
            name = "warm-up" if phase == "warmup" else "RL"
            self._progress.update(self._task, completed=done, phase=name, line=line)
        elif step % PLAIN_EVERY == 0 or step == self._total[phase]:
            self._console.print(f"{phase} {step}/{self._total[phase]} {line}", highlight=False, soft_wrap=True)


def _step_line(record: dict[str, Any], silent: int) -> str:
    if record["phase"] == "warmup":
        return f"nll {record['negative_log_likelihood']:.3f}  grad {record['grad_norm']:.2f}"
    return (
        f"reward {record['strict_reward']:.3f}  log-ratio {record['log_ratio']:+.3f}  "
        f"grad {record['grad_norm']:.2f}  zero-signal groups {silent}"
    )


def show_summary(console: Console, results: dict[str, Any]) -> None:
    """Print a finished run's results: exact success beside sampled, and what each phase gained."""
    for split in ("train", "test"):
        points = {name: results["points"][name][split] for name in POINT_NAMES}
        rows = [
            (
                POINT_NAMES[name],
                point["success"],
                point["kl"],
                point["sampled"]["successes"],
                point["sampled"]["trials"],
                point["sampled"]["low"],
                point["sampled"]["high"],
            )
            for name, point in points.items()
        ]
        _success_table(console, split, rows)
    gains = results["gains"]
    for split in ("train", "test"):
        console.print(
            f"{split}: warm-up {100 * gains[split]['warmup']:+.1f}, RL {100 * gains[split]['rl']:+.1f} "
            "percentage points of exact success",
            highlight=False,
        )
    train, test = (results["points"]["rl"][split]["success"] for split in ("train", "test"))
    console.print(
        f"{train:.1%} on the training problems and {test:.1%} on the test problems (chance is 1%): "
        + ("memorised, not solved." if train > 3 * test else "read the report before concluding anything."),
        highlight=False,
    )


def show_evaluation(console: Console, made: Evaluation) -> None:
    """Print the three points of a run on one split."""
    rows = [_point_row(POINT_NAMES[name], point) for name, point in made.points.items()]
    _success_table(console, made.split, rows)


def _point_row(name: str, point: PointEvaluation) -> tuple[str, float, float, int, int, float, float]:
    exact, sampled = point.exact, point.sampled
    return name, exact.mean_success, exact.mean_kl, sampled.successes, sampled.trials, sampled.low, sampled.high


def _success_table(
    console: Console, split: str, rows: Iterable[tuple[str, float, float, int, int, float, float]]
) -> None:
    table = Table(title=f"{split} problems", title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("")
    for heading in ("exact success", "KL (nats)", "sampled", "95% interval"):
        table.add_column(heading, justify="right")
    for name, success, kl, successes, trials, low, high in rows:
        table.add_row(name, f"{success:.2%}", f"{kl:.3f}", f"{successes}/{trials}", f"{low:.1%} to {high:.1%}")
    console.print(table)


def show_claims(console: Console, claims: Iterable[Claim]) -> None:
    """Print claims, one a line with its verdict, and their findings below."""
    claims = list(claims)
    for claim in claims:
        detail = escape(printable(claim.detail + claim.figures))
        line = f"{_verdict(claim.verdict)}  [bold]{escape(claim.name)}[/bold]: {detail}"
        console.print(line, highlight=False, soft_wrap=True)
        for finding in claim.findings:
            console.print(f"    {escape(printable(finding))}", highlight=False, soft_wrap=True)
    console.print(_verdict(overall(claims)), highlight=False)


def _verdict(verdict: Verdict) -> str:
    return f"[{STYLES[verdict]}]{verdict}[/{STYLES[verdict]}]"


def show_comparison(console: Console, made: Comparison) -> None:
    """Print what two runs have in common, and what sampling noise cost where one of them had none."""
    first, second = (escape(str(path)) for path in made.runs)
    console.print(f"first {first}, second {second}", highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for heading in ("", "first", "second", "difference"):
        table.add_column(heading, justify="left" if not heading else "right")
    for split in made.success:
        a, b = made.success[split]
        table.add_row(f"exact success, {split}", f"{a:.2%}", f"{b:.2%}", f"{100 * (b - a):+.2f} points")
    for split in made.kl:
        a, b = made.kl[split]
        table.add_row(f"exact KL (nats), {split}", f"{a:.4f}", f"{b:.4f}", f"{b - a:+.4f}")
    console.print(table)
    lines = [f"{name}: {'identical' if same else 'different'}" for name, same in made.identical.items()]
    lines.append(f"largest difference in a response's final probability: {made.probability_gap:.3g}")
    distance = "none, their shapes differ" if made.gradient_gap is None else f"{made.gradient_gap:.3g}"
    lines.append(f"distance of the exact gradients at the final weights: {distance}")
    for name, gap in made.curve_gaps.items():
        lines.append(f"largest difference in a step's {name.replace('_', ' ')}: {gap:.3g}")
    lines.append(f"RL began at {'the same' if made.same_start else 'different'} weights")
    if made.noise is not None:
        noise = made.noise
        lines.append(
            f"sampling noise in the first RL step, exactly: |gradient|^2 {noise.signal:.4g}, variance "
            f"{noise.variance:.4g}, so {noise.ratio:.2f} of signal for each unit of noise; an exact step has no noise"
        )
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    show_claims(console, [made.claim])
