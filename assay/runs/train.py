"""Training into a run directory: start, resume, seal."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w

from assay.errors import ConfigError, EvidenceError, Interrupted, RunError
from assay.evidence import sums
from assay.evidence.files import entries_of, read_json, read_regular, read_rows, read_toml, resume_command
from assay.evidence.history import check_rows
from assay.evidence.manifest import (
    FILES,
    MANIFEST,
    PROVENANCE,
    build_manifest,
    build_provenance,
)
from assay.report.page import build_page
from assay.runs.directory import (
    Journal,
    create,
    held,
    removed_on_failure,
    to_json,
    write,
)
from assay.runs.environment import describe_environment, differences
from assay.runs.results import Splits, compute_results, monitor
from assay.tasks.chain import SPLITS, draw_splits
from assay.threads import one_thread
from assay.training import checkpoint, loop
from assay.training.config import Recipe, build_recipe, read_settings
from assay.training.state import State, start

Record = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        directory: where everything is.
        results: the content of ``results.json``: plan, spent, points (success and KL at init, after warm-up,
            after RL, on train and test), gains, tensors, reference digests. Probabilities are in [0, 1], KL in
            nats a response.
    """

    directory: Path
    results: Record

    @property
    def report(self) -> Path:
        """Return the path of the run's report."""
        return self.directory / "report.html"


def train(
    recipe: Recipe | str | Path | dict[str, Any] | None = None,
    output: str | Path | None = None,
    *,
    on_start: Callable[[Recipe, Path], None] = lambda recipe, directory: None,
    on_step: Callable[[Record], None] = lambda record: None,
    stopping: Callable[[], bool] = lambda: False,
) -> Run:
    """Train the seed experiment into a new directory, evaluate it, seal it, and write its report.

    Args:
        recipe: a :class:`~assay.training.config.Recipe`, the path of a TOML file, nested settings, or None for
            the seed experiment.
        output: the run directory, which must not exist; None makes ``runs/seed-TIME``.
        on_start: receives the settled recipe and the directory once nothing stands in the way, before the first step.
        on_step: receives each step's record (see the run directory's format) as it is taken.
        stopping: asked after each step; True saves a resumable checkpoint and raises ``Interrupted``.

    Returns:
        The finished run.

    Raises:
        ConfigError: a setting is unknown, out of range or contradicts another. Nothing is written.
        RunError: the directory exists or cannot be written.
        UpdateError: a guard stopped the run: a gradient missing or not finite, sampler and scorer apart, a
            changed reference.
        Interrupted: ``stopping`` asked for it.

    The experiment: ``docs/experiment.md``. The estimator: Kool et al. 2019
    (:func:`assay.core.advantages.leave_one_out`).
    """
    settled = as_recipe(recipe)
    splits = draw_splits(settled.seed, train=settled.task.train_problems, test=settled.task.test_problems)
    directory = Path(output) if output is not None else default_output()
    create(directory)
    with held(directory):
        with removed_on_failure(directory):
            write(directory / "config.toml", tomli_w.dumps(settled.model_dump()).encode())
            write(directory / "data.json", to_json(_prompts(splits)))
            write(directory / "environment.json", to_json(describe_environment()))
            write(directory / "checkpoint.pt", checkpoint.to_bytes(start(settled)))
        return _carry_through(directory, settled, splits, _Watch(on_start, on_step, stopping))


def resume(
    directory: str | Path,
    *,
    on_start: Callable[[Recipe, Path], None] = lambda recipe, directory: None,
    on_step: Callable[[Record], None] = lambda record: None,
    stopping: Callable[[], bool] = lambda: False,
) -> Run:
    """Continue an interrupted run from its last checkpoint to the end.

    Weights, metrics and manifest come out as those of the uninterrupted run, byte for byte.

    Raises:
        RunError: no such run, it has finished, another process holds it, or source or environment are not those
            it began with.
        ConfigError, CheckpointError, EvidenceError: one of its files is damaged.
        UpdateError, Interrupted: as :func:`train`.
    """
    place = Path(directory)
    with held(place):
        if (place / sums.NAME).exists():
            raise RunError(f"{place}: this run has finished; verify it with: assay verify {place}")
        recipe, splits = open_run(place)
        changed = differences(read_json(place / "environment.json"), describe_environment())
        if changed:
            raise RunError(
                f"{place}: cannot go on as one run, because {'; '.join(changed)}; go back to what it began with, "
                "or start a new run"
            )
        return _carry_through(place, recipe, splits, _Watch(on_start, on_step, stopping))


def as_recipe(recipe: Recipe | str | Path | dict[str, Any] | None) -> Recipe:
    """Return a recipe from any of the forms that :func:`train` takes."""
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, str | Path):
        return build_recipe(read_settings(Path(recipe)), place=str(recipe))
    return build_recipe(recipe or {}, place="settings")


def default_output() -> Path:
    """Return a new directory name under ``runs/`` made from the time."""
    wanted = Path("runs") / f"seed-{datetime.now():%Y%m%d-%H%M%S}"
    names = itertools.chain([wanted], (wanted.with_name(f"{wanted.name}-{n}") for n in itertools.count(2)))
    return next(path for path in names if not path.exists())


def open_run(place: Path) -> tuple[Recipe, Splits]:
    """Read a run's settings and problems.

    Raises:
        RunError: the directory is no run, or a file is missing.
        ConfigError, EvidenceError: its settings are damaged, or its problems are not the ones its seed draws.
    """
    if not place.is_dir():
        raise RunError(f"{place}: no such run directory; check the path")
    if not (place / "config.toml").exists():
        raise RunError(f"{place}: not a run directory (no config.toml in it); check the path")
    settings = read_toml(place / "config.toml")
    recipe = build_recipe(settings, place=str(place / "config.toml"))
    if settings != recipe.model_dump():
        raise ConfigError(f"{place / 'config.toml'}: a run records every setting, this one does not; it was changed")
    recorded = read_json(place / "data.json")
    splits = draw_splits(recipe.seed, train=recipe.task.train_problems, test=recipe.task.test_problems)
    if recorded != _prompts(splits):
        raise EvidenceError(f"{place / 'data.json'}: not the problems that seed {recipe.seed} draws; it was changed")
    return recipe, splits


def _prompts(splits: Splits) -> dict[str, list[str]]:
    """Return the content of ``data.json``."""
    return {split: [problem.prompt for problem in splits[split]] for split in SPLITS}


def load_state(place: Path, recipe: Recipe) -> State:
    """Read a run's checkpoint.

    Raises:
        RunError: it is missing or unreadable.
        EvidenceError, CheckpointError: it is no regular file, damaged, or does not fit the recipe.
    """
    path = place / "checkpoint.pt"
    return checkpoint.from_bytes(read_regular(path), recipe, place=str(path))


def load_finished(place: Path, recipe: Recipe) -> State:
    """Read a finished run's checkpoint; raises as :func:`load_state`, and RunError when the run has not finished."""
    state = load_state(place, recipe)
    if state.phase != "done":
        where = f"stands at {state.phase} step {state.step} and has no results before its end"
        raise RunError(f"{place}: {where}; continue it with: {resume_command(place)}")
    return state


@dataclass(frozen=True)
class _Watch:
    """Who is told of a run, and asked whether to stop; as the arguments of :func:`train`."""

    on_start: Callable[[Recipe, Path], None]
    on_step: Callable[[Record], None]
    stopping: Callable[[], bool]


def _carry_through(place: Path, recipe: Recipe, splits: Splits, watch: _Watch) -> Run:
    """Train from where the directory stands to the end, then seal it."""
    path = place / "checkpoint.pt"
    state = load_state(place, recipe) if path.exists() else start(recipe)
    with (
        closing(Journal(place / "metrics.jsonl", keep=state.rows(recipe))) as metrics,
        closing(Journal(place / "timing.jsonl", keep=None)) as timing,
    ):

        def emit(record: Record, seconds: float) -> None:
            metrics.append(record)
            timing.append({"phase": record["phase"], "step": record["step"], "seconds": round(seconds, 6)})
            watch.on_step(record)

        def save(state: State) -> None:
            metrics.sync()
            write(path, checkpoint.to_bytes(state))

        _check_past(metrics.path, timing.path, recipe)
        watch.on_start(recipe, place)
        timing.append({"event": "started" if state.rows(recipe) == 0 else "resumed", "time": _now()})
        try:
            with one_thread():
                loop.run(state, recipe, splits["train"], loop.Hooks(emit, save, monitor(splits), watch.stopping))
                results = compute_results(recipe, splits, state, read_rows(metrics.path))
        except Interrupted as interrupted:
            raise Interrupted(f"{interrupted}; continue with: {resume_command(place)}") from None
        timing.append({"event": "finished", "time": _now()})
    _seal(place, recipe, results)
    return Run(place, read_json(place / "results.json"))


def _check_past(metrics: Path, timing: Path, recipe: Recipe) -> None:
    """Refuse to go on from a history that is damaged: whatever is wrong with it would be sealed at the end.

    Raises:
        EvidenceError: a record cannot be read, or is not the planned step's.
    """
    with entries_of(str(timing)):
        _times(timing)
    with entries_of(str(metrics)):
        findings = check_rows(read_rows(metrics), recipe.model_dump())
    if findings:
        raise EvidenceError(f"{metrics.parent}/{findings[0]}; the history is damaged, start a new run")


def _times(timing: Path) -> list[str]:
    """Return the recorded times, in order: first when the run started, last, once it is over, when it finished."""
    return [row["time"] for row in read_rows(timing) if "event" in row]


def _seal(place: Path, recipe: Recipe, results: Record) -> None:
    """Write results, evidence and report. ``SHA256SUMS`` comes last: a run that has it is finished."""
    write(place / "results.json", to_json(results))
    environment = read_json(place / "environment.json")
    manifest = build_manifest(place, environment)
    write(place / MANIFEST, to_json(manifest))
    times = _times(place / "timing.jsonl")
    write(
        place / PROVENANCE,
        to_json(build_provenance(manifest, recipe.model_dump(), environment, started=times[0], finished=times[-1])),
    )
    write(place / "report.html", build_page(place).encode())
    write(place / sums.NAME, sums.sums_text(place, list(FILES)).encode())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
