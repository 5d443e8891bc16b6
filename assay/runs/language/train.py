"""Training a language model into a run directory: start, resume, measure, seal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w
import torch

from assay.errors import ConfigError, EvidenceError, Interrupted, RunError
from assay.evidence import sums
from assay.evidence.files import entries_of, read_json, read_rows, read_toml, resume_command
from assay.evidence.language.history import check_steps
from assay.evidence.language.weights import weight_files
from assay.evidence.tensors import tensors_digest
from assay.policies.engines import Engine
from assay.report.language.page import build_language_page
from assay.runs.directory import Journal, create, held, removed_on_failure, to_json, write
from assay.runs.environment import describe_environment, differences
from assay.runs.language.card import model_card
from assay.runs.language.data import read_problems, write_data
from assay.runs.language.export import Base, export
from assay.runs.language.layout import Layout, settle
from assay.runs.language.measure import measure
from assay.runs.language.mirrors import open_mirrors
from assay.runs.language.preflight import check_exportable
from assay.runs.language.results import compute_results
from assay.runs.language.samples import append_sample
from assay.runs.language.seal import seal
from assay.runs.language.weights import load_checkpoint, save_checkpoint
from assay.runs.language.workshop import (
    Problems,
    Workshop,
    data_facts,
    load_model,
    opened,
    read_task,
    settings_of,
    tested,
)
from assay.tasks.selftest import SelfTest, require
from assay.tasks.text import TextTask
from assay.training.language.loop import Hooks, run
from assay.training.language.recipe import LanguageRecipe, build_language_recipe, estimator_of
from assay.training.language.rollout import Rollout
from assay.training.language.state import LanguageState, begin, check_reference
from assay.training.language.steps import Workplace, needs_reference
from assay.training.sections import read_settings

Record = dict[str, Any]
PACKAGES = ("transformers", "tokenizers", "safetensors")
VLLM_MEMORY = 0.4
"""Share of the device's memory that vllm may take beside the policy that is trained."""
MONITOR = 2**20
"""First step in the address of what is evaluated on the way; those of the results are below it."""


@dataclass(frozen=True)
class LanguageRun:
    """A finished run.

    Attributes:
        directory: where everything is.
        results: the content of ``results.json``.
        data: the content of ``data.json``.
    """

    directory: Path
    results: Record
    data: Record

    @property
    def report(self) -> Path:
        """Return the path of the run's report."""
        return Layout(self.directory).report


@dataclass(frozen=True)
class Watch:
    """Who is told of a run, and asked whether to stop.

    Attributes:
        on_task: receives the problems once they are split, before the model is loaded.
        on_test: receives what the grader made of known answers, if it was tried.
        on_start: receives the recipe, the directory and the counts of problems once nothing stands in the way.
        on_step: receives each step's record and seconds, and the batch of responses it was made from, if any.
        on_work: is told what is being done outside of steps.
        stopping: asked after each step; True saves a resumable checkpoint and raises ``Interrupted``.
    """

    on_task: Callable[[TextTask], None] = lambda task: None
    on_test: Callable[[SelfTest], None] = lambda test: None
    on_start: Callable[[LanguageRecipe, Path, Mapping[str, int]], None] = lambda recipe, place, counts: None
    on_step: Callable[[Record, float, Rollout | None], None] = lambda record, seconds, rollout: None
    on_work: Callable[[str], None] = lambda text: None
    stopping: Callable[[], bool] = lambda: False


def train_language(
    recipe: LanguageRecipe | str | Path | Mapping[str, Any],
    output: str | Path | None = None,
    *,
    watch: Watch = Watch(),
) -> LanguageRun:
    """Train a language model into a new directory, measure it, seal it, and write its report.

    Args:
        recipe: every setting, the path of a TOML file, or nested settings.
        output: the run directory, which must not exist; None makes ``runs/language-TIME``.
        watch: who is told.

    Raises:
        ConfigError: a setting, the data, the model or the grader is not usable. Nothing is written.
        RunError: the directory exists or cannot be written.
        UpdateError: a guard stopped the run; it can be resumed from its last checkpoint.
        Interrupted: ``watch.stopping`` asked for it.
    """
    recipe = as_language_recipe(recipe)
    if recipe.policy.engine == "vllm" and not Path(recipe.model).is_dir():
        raise ConfigError(
            f"model = {recipe.model}: policy.engine = 'vllm' opens a directory; download it and name its place"
        )
    task = read_task(recipe)
    watch.on_task(task)
    problems = {"train": task.train, "test": task.test}
    place = Path(output) if output is not None else _default_output()
    if place.exists():
        raise RunError(f"{place}: exists already; a run is never overwritten, choose a new --output")
    with opened(recipe, problems) as workshop:
        made = tested(recipe, task.train, workshop)
        if made is not None:
            watch.on_test(made)
            require(made)
        _check_export(workshop)
        layout = Layout(place)
        create(place)
        with held(place):
            with removed_on_failure(place):
                write(layout.config, tomli_w.dumps(settings_of(recipe)).encode())
                write_data(layout, problems, data_facts(task, made))
                write(layout.environment, to_json(environment(recipe)))
                state = begin(workshop.loaded.policy, recipe.warmup, base=workshop.loaded.digest)
                save_checkpoint(layout, state)
            return _carry_through(layout, workshop, state, watch)


def as_language_recipe(recipe: LanguageRecipe | str | Path | Mapping[str, Any]) -> LanguageRecipe:
    """Return a recipe from any of the forms that :func:`train_language` takes."""
    if isinstance(recipe, LanguageRecipe):
        return recipe
    if isinstance(recipe, Mapping):
        return build_language_recipe(recipe, place="settings", base=Path.cwd())
    file = Path(recipe)
    return build_language_recipe(read_settings(file), place=str(file), base=file.resolve().parent)


def resume_language(directory: str | Path, *, watch: Watch = Watch()) -> LanguageRun:
    """Continue an interrupted run from its last checkpoint; its files come out as those of the uninterrupted run.

    Raises:
        RunError: the run has finished, another process holds it, or source or environment are not those it began with.
        ConfigError, CheckpointError, EvidenceError: one of its files is damaged, or the base model is another one.
        UpdateError, Interrupted: as :func:`train_language`.
    """
    place = Path(directory)
    layout = Layout(place)
    with held(place):
        if (place / sums.NAME).exists():
            raise RunError(f"{place}: this run has finished; verify it with: assay verify {place}")
        recipe, problems = open_language_run(place)
        changed = differences(read_json(layout.environment), environment(recipe))
        if changed:
            raise RunError(
                f"{place}: cannot go on as one run, because {'; '.join(changed)}; go back to what it began with, "
                "or start a new run"
            )
        for directory in (layout.warmup, layout.model):
            settle(directory)
        with opened(recipe, problems) as workshop:
            state = load_checkpoint(layout, workshop.loaded.policy, recipe, base=workshop.loaded.digest)
            if state is None:
                raise RunError(f"{place}: no checkpoint in it; start a new run")
            _restore_reference(layout, workshop, state)
            return _carry_through(layout, workshop, state, watch)


def open_language_run(place: Path) -> tuple[LanguageRecipe, Problems]:
    """Read a run's settings and problems.

    Raises:
        RunError: the directory is no run, or a file is missing.
        ConfigError, EvidenceError: they are damaged.
    """
    layout = Layout(place)
    settings = read_toml(layout.config)
    recipe = build_language_recipe(settings, place=str(layout.config), base=place.resolve())
    if settings != settings_of(recipe):
        raise ConfigError(f"{layout.config}: a run records every setting, this one does not; it was changed")
    return recipe, {split: tuple(read_problems(layout.rows(split))) for split in ("train", "test")}


def environment(recipe: LanguageRecipe) -> Record:
    """Return what a run's numbers depend on here; see :func:`assay.runs.environment.describe_environment`."""
    packages = (*PACKAGES, "peft") if recipe.lora else PACKAGES
    return describe_environment(packages, threads=torch.get_num_threads())


@dataclass
class _Seen:
    """The last batch of responses, kept until its step has been recorded."""

    rollout: Rollout | None = field(default=None)

    def take(self) -> Rollout | None:
        taken, self.rollout = self.rollout, None
        return taken


def _carry_through(layout: Layout, workshop: Workshop, state: LanguageState, watch: Watch) -> LanguageRun:
    """Train from where the state stands to the end, then measure and seal."""
    recipe, place = workshop.recipe, layout.root
    done = state.step + (recipe.warmup.steps if state.phase != "warmup" else 0)
    seen = _Seen()
    with ExitStack() as stack:
        metrics = stack.enter_context(closing(Journal(layout.metrics, keep=done)))
        timing = stack.enter_context(closing(Journal(layout.timing, keep=None)))
        mirrors = stack.enter_context(closing(_mirrors(recipe, place)))
        _check_past(layout, recipe)
        counts = {split: len(problems) for split, problems in workshop.problems.items()}
        watch.on_start(recipe, place, counts)
        timing.append({"event": "started" if done == 0 else "resumed", "time": _now()})

        def emit(record: Record, seconds: float) -> None:
            metrics.append(record)
            timing.append({"phase": record["phase"], "step": record["step"], "seconds": round(seconds, 6)})
            before = recipe.warmup.steps if record["phase"] == "rl" else 0
            mirrors(record, before + record["step"])
            watch.on_step(record, seconds, seen.take())

        def save(state: LanguageState) -> None:
            metrics.sync()
            save_checkpoint(layout, state)

        def warmed_up(state: LanguageState) -> None:
            watch.on_work("saving the policy after the warm-up")
            export(state.policy.model, workshop.loaded.tokenizer, layout.warmup, base=_base(workshop))

        engine = _engine(workshop, state)
        train = workshop.problems["train"], workshop.prompts["train"]
        work = Workplace(
            recipe, *train, workshop.codec, engine, workshop.grader, lambda rollout: setattr(seen, "rollout", rollout)
        )
        try:
            run(state, work, Hooks(emit, save, warmed_up, _monitor(workshop), watch.stopping))
        except Interrupted as interrupted:
            raise Interrupted(f"{interrupted}; continue with: {resume_command(place)}") from None
        _finish(layout, workshop, state, watch)
        timing.append({"event": "finished", "time": _now()})
    seal(layout, read_toml(layout.config), build_language_page)
    return LanguageRun(place, read_json(layout.results), read_json(layout.data))


def _finish(layout: Layout, workshop: Workshop, state: LanguageState, watch: Watch) -> None:
    """Measure every point, and write samples, results and the model with its card."""
    base, tokenizer = _base(workshop), workshop.loaded.tokenizer
    rows = read_rows(layout.metrics)
    watch.on_work("saving the policy")
    digests: Record = {
        "base": state.digests["base"],
        "reference": _reference_digests(state),
        "policy": export(state.policy.model, tokenizer, layout.model, base=base),
    }
    if workshop.recipe.warmup.steps:
        digests["warmup"] = tensors_digest(weight_files(layout.warmup))
    with closing(Journal(layout.samples, keep=0)) as journal:
        results = compute_results(
            workshop,
            state,
            rows,
            layout.warmup,
            digests=digests,
            keep=lambda sample: append_sample(journal, sample),
            say=watch.on_work,
        )
        journal.sync()
    write(layout.results, to_json(results))
    card = model_card(read_toml(layout.config), read_json(layout.data), results, base=base)
    write(layout.model / "README.md", card.encode())


def _reference_digests(state: LanguageState) -> dict[str, str]:
    """Return the reference's digests as results name them: at the start of RL, at every save, at the end."""
    names = {"rl 0": "start", "end": "end"}
    return {
        names.get(point, point.replace("rl ", "step ")): digest
        for point, digest in state.digests.items()
        if point != "base"
    }


def _restore_reference(layout: Layout, workshop: Workshop, state: LanguageState) -> None:
    """Load what the KL of a resumed run is measured from, and check that it is what it was.

    Raises:
        UpdateError: it is not.
    """
    recipe = workshop.recipe
    if state.phase != "rl" or not needs_reference(estimator_of(recipe)[1]):
        return
    if recipe.lora:
        state.reference = state.policy.base()
    else:
        place = str(layout.warmup) if recipe.warmup.steps else None
        state.reference = load_model(recipe, place).policy.base()
    check_reference(state)


def _engine(workshop: Workshop, state: LanguageState) -> Engine:
    """Return what draws the responses of training."""
    options = workshop.recipe.policy
    if options.engine == "own":
        return workshop.engine(state.policy)
    from assay.policies.engines.vllm import VllmEngine

    return VllmEngine(
        Path(workshop.recipe.model), dtype=options.dtype, context=workshop.loaded.context, memory=VLLM_MEMORY
    )


def _monitor(workshop: Workshop) -> Callable[[LanguageState], Record]:
    """Return the greedy evaluation on the test problems that is recorded along the way."""

    def monitor(state: LanguageState) -> Record:
        occasion = MONITOR + state.step
        record = measure(workshop, state.policy, "rl", "test", occasion=occasion, samples=0, greedy=True)
        return {"test": {name: record["greedy"][name] for name in ("rate", "right", "of")}}

    return monitor


def _check_export(workshop: Workshop) -> None:
    """Refuse a model that could not be saved at the end, before anything is spent on it."""
    texts = [str(problem.prompt) for problem in workshop.problems["test"][:20]]
    check_exportable(workshop.loaded.policy.model, workshop.loaded.tokenizer, texts)


def _check_past(layout: Layout, recipe: LanguageRecipe) -> None:
    """Refuse to go on from a history that is damaged: whatever is wrong with it would be sealed at the end.

    Raises:
        EvidenceError: a record cannot be read, or is not the planned step's.
    """
    numbers = {problem.number for problem in read_problems(layout.rows("train"))}
    with entries_of(str(layout.metrics)):
        findings = check_steps(read_rows(layout.metrics), settings_of(recipe), numbers)
    if findings:
        raise EvidenceError(f"{layout.root}/{findings[0]}; the history is damaged, start a new run")


def _mirrors(recipe: LanguageRecipe, place: Path) -> Any:
    return open_mirrors(recipe.tracking.mirrors, recipe.tracking.project, place.name, settings_of(recipe))


def _base(workshop: Workshop) -> Base:
    return Base(workshop.recipe.model, workshop.loaded.digest)


def _default_output() -> Path:
    """Return a new directory name under ``runs/`` made from the time."""
    wanted = Path("runs") / f"language-{datetime.now():%Y%m%d-%H%M%S}"
    return wanted if not wanted.exists() else wanted.with_name(f"{wanted.name}-{datetime.now():%f}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
