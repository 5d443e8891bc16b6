"""Read a finished language run's files into records. Nothing in them is trusted: what is odd is an error that names it.

Text is only text until the template escapes it; a model may have written anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from assay.errors import EvidenceError
from assay.evidence.files import entries_of, read_json, read_rows, read_toml
from assay.report.language.history import read_history
from assay.report.language.measured import Comparison, Point
from assay.report.language.points import read_bound, read_comparison, read_format, read_point
from assay.report.language.record import (
    CONTROLS,
    PHASES,
    POINTS,
    SPLITS,
    Ascended,
    Budget,
    Claim,
    Data,
    Digests,
    LanguageRun,
    Settings,
)
from assay.report.language.responses import read_shown
from assay.report.values import real, share, text, whole

T = TypeVar("T")


def read_language_run(place: Path) -> LanguageRun:
    """Read a finished run.

    Args:
        place: the run directory. ``SHA256SUMS`` and ``report.html`` are not read: they come later.

    Raises:
        RunError: a file is missing or cannot be read.
        EvidenceError: a file cannot be parsed, or an entry is missing or of the wrong kind.
    """

    def parsed(name: str, read: Callable[[Path], Any], build: Callable[[Any], T]) -> T:
        with entries_of(name):
            return build(read(place / name))

    def results(build: Callable[[Any], T]) -> T:
        with entries_of("results.json"):
            return build(recorded)

    recorded = parsed("results.json", read_json, lambda content: dict(content))
    points = results(lambda made: {name: _splits(made["points"][name]) for name in _known(made["points"], POINTS)})
    controls = results(
        lambda made: {name: _control(made["controls"][name]) for name in _known(made["controls"], CONTROLS)}
    )
    measured = sum(made.count for point, _ in controls.values() for made in point.kinds.values())
    warmup, rl = parsed("metrics.jsonl", read_rows, read_history)
    run = LanguageRun(
        settings=parsed("config.toml", read_toml, lambda config: _settings(config, recorded["digests"]["reference"])),
        points=points,
        gains=results(lambda made: {split: _gains(made["gains"][split]) for split in SPLITS}),
        format=results(lambda made: None if made["format"] is None else read_format(made["format"])),
        controls=controls,
        bounds=results(
            lambda made: {name: read_bound(made["bounds"][name]["test"]) for name in _known(made["bounds"], POINTS)}
        ),
        warmup=warmup,
        rl=rl,
        ascended=results(lambda made: _ascended(made["plan"])),
        budget=results(lambda made: tuple(_budget(made["plan"], made["spent"], measured))),
        advice=results(lambda made: None if made["signal"]["advice"] is None else text(made["signal"]["advice"])),
        data=parsed("data.json", read_json, _data),
        digests=results(lambda made: _digests(made["digests"])),
        environment=parsed("environment.json", read_json, lambda content: tuple(flat(content))),
        shown=read_shown(place, tuple(points)),
    )
    _check_phases(run)
    return run


def _check_phases(run: LanguageRun) -> None:
    """Check that points, gains, bounds, controls and steps speak of the same phases.

    Raises:
        EvidenceError: they do not.
    """
    there = {"base": True, "warmup": bool(run.warmup), "rl": bool(run.rl)}
    points = [name for name in POINTS if there[name]]
    phases = [*points[1:], *(["total"] if len(points) > 1 else [])]
    found = {
        "points": (list(run.points), points),
        "gains on train": (list(run.gains["train"]), phases),
        "gains on test": (list(run.gains["test"]), phases),
        "bounds": (list(run.bounds), points if run.bounds else []),
        "format": (run.format is not None, len(points) > 1),
        "controls without RL": (bool(run.controls) and not run.rl, False),
    }
    for name, (recorded, expected) in found.items():
        if recorded != expected:
            raise EvidenceError(f"results.json: {name} are {recorded}; the steps of metrics.jsonl make them {expected}")


def flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield every leaf of nested settings by its dotted name, written as the files write it."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield text(f"{prefix}{name}"), written(value)


def written(value: Any) -> str:
    """Return a recorded setting as text."""
    if isinstance(value, list):
        return f"[{', '.join(repr(one) if isinstance(one, str) else written(one) for one in value)}]"
    return str(value).lower() if isinstance(value, bool) else text(value)


def _known(record: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return the names that a record has, in their order.

    Raises:
        ValueError: it has others.
    """
    if others := set(record) - set(names):
        raise ValueError(f"{min(others)!r} is none of {', '.join(names)}")
    return [name for name in names if name in record]


def _splits(record: Mapping[str, Any]) -> dict[str, Any]:
    return {split: read_point(record[split]) for split in SPLITS}


def _control(record: Mapping[str, Any]) -> tuple[Point, Comparison]:
    return read_point(record["test"]), read_comparison(record["comparison"])


def _gains(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: read_comparison(record[name]) for name in _known(record, PHASES) if record[name] is not None}


def _settings(config: Mapping[str, Any], reference: Any) -> Settings:
    rl = config["rl"]
    return Settings(
        model=text(config["model"]),
        seed=whole(config["seed"]),
        lora=whole(config["lora"]),
        has_format=bool(config["grading"]["format"]),
        has_reference=bool(reference),
        problems_per_step=whole(rl["problems_per_step"]),
        num_generations=whole(rl["num_generations"]),
        num_iterations=whole(rl["num_iterations"]),
        max_grad_norm=real(rl["max_grad_norm"]),
        weight_decay=real(rl["weight_decay"]),
        schedule=text(rl["lr_scheduler_type"]),
        temperature=real(rl["temperature"]),
        top_k=whole(rl["top_k"]),
        top_p=share(rl["top_p"]),
        max_completion_length=whole(rl["max_completion_length"]),
        mask_truncated=bool(rl["mask_truncated_completions"]),
        engine=text(config["policy"]["engine"]),
        every=tuple(flat(config)),
    )


def _ascended(plan: Mapping[str, Any]) -> Ascended:
    return Ascended(
        algorithm=text(plan["algorithm"]),
        estimand=text(plan["estimand"]),
        objective=None if plan["objective"] is None else text(plan["objective"]),
        settings=tuple(flat(plan["settings"])),
        advice=tuple(text(one) for one in plan["advice"]),
    )


def _budget(plan: Mapping[str, Any], spent: Mapping[str, Any], of_controls: int) -> Iterator[Budget]:
    """Yield what was planned beside what was spent; what the controls were measured by is counted apart."""
    yield Budget("Warm-up steps", whole(plan["warmup_steps"]), whole(spent["warmup_steps"]))
    yield Budget("RL steps", whole(plan["rl_steps"]), whole(spent["rl_steps"]))
    yield Budget("Responses trained on", whole(plan["responses"]), whole(spent["training_trajectories"]))
    evaluated = whole(plan["evaluation_responses"]) + whole(plan["greedy_responses"])
    yield Budget("Responses evaluated", evaluated, whole(spent["evaluation_responses"] - of_controls))
    if of_controls:
        yield Budget("Responses of controls evaluated", None, of_controls)
    yield Budget("Groups without signal", None, whole(spent["zero_signal_groups"]))
    yield Budget("RL steps that the optimizer did not take", None, whole(spent["zero_signal_steps"]))


def _data(record: Mapping[str, Any]) -> Data:
    sizes = {split: whole(record["splits"][split]["rows"]) for split in SPLITS}
    if not all(sizes.values()):
        raise ValueError("a split has no problems")
    tested = record["self_test"]
    return Data(
        sources=tuple((text(one["name"]), whole(one["rows"]), text(one["sha256"])) for one in record["sources"]),
        sizes=sizes,
        digests={split: text(record["splits"][split]["sha256"]) for split in SPLITS},
        overlap={text(name): whole(value) for name, value in record["overlap"].items()},
        tried=whole(tested["problems"]),
        claims=tuple(
            Claim(text(c["name"]), text(c["verdict"]), text(c["detail"]), tuple(map(text, c["findings"])))
            for c in tested["claims"]
        ),
    )


def _digests(record: Mapping[str, Any]) -> Digests:
    return Digests(
        base=text(record["base"]),
        warmup=text(record["warmup"]) if "warmup" in record else None,
        policy=text(record["policy"]),
        reference={text(when): text(digest) for when, digest in record["reference"].items()},
    )
