"""Read a finished run's files into records.

The only part of the report that touches files, and it trusts none of them: a value of the wrong kind is an error that
names its file, and text is only text until the template escapes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from assay.evidence.files import entries_of, read_json, read_rows, read_toml
from assay.report.record import (
    POINTS,
    SPLITS,
    Budget,
    Exact,
    Pairs,
    Point,
    Problems,
    Results,
    RLStep,
    Run,
    Settings,
    Tensor,
    Timing,
    WarmupStep,
)
from assay.report.values import real, share, text, whole

T = TypeVar("T")


def read_run(directory: Path) -> Run:
    """Read a finished run.

    Args:
        directory: holds what ``assay train`` wrote. ``SHA256SUMS`` and ``report.html`` are not read: they come later.

    Raises:
        RunError: a file is missing or cannot be read.
        EvidenceError: a file cannot be parsed, or an entry is missing or of the wrong kind.
    """

    def parsed(name: str, read: Callable[[Path], Any], build: Callable[[Any], T]) -> T:
        with entries_of(name):
            return build(read(directory / name))

    problems = parsed("data.json", read_json, _problems)
    warmup, rl = parsed("metrics.jsonl", read_rows, _history)
    source, files = parsed("manifest.json", read_json, lambda m: (text(m["source"]), _texts(m["files"])))
    return Run(
        settings=parsed("config.toml", read_toml, _settings),
        problems=problems,
        environment=parsed("environment.json", read_json, lambda recorded: tuple(_flat(recorded))),
        warmup=warmup,
        rl=rl,
        timing=parsed("timing.jsonl", read_rows, _timing),
        results=parsed("results.json", read_json, lambda recorded: _results(recorded, problems, rl)),
        source=source,
        files=files,
    )


def _pair(values: Any) -> tuple[int, int]:
    low, high = values
    return whole(low), whole(high)


def _texts(record: dict[str, Any]) -> Pairs:
    return tuple((text(name), text(value)) for name, value in record.items())


def _flat(record: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield every leaf of nested settings by its dotted name."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield text(f"{prefix}{name}"), text(value)


def _settings(config: dict[str, Any]) -> Settings:
    rl = config["rl"]
    if whole(rl["problems_per_step"]) < 1 or real(rl["beta"]) < 0:
        raise ValueError(f"rl.problems_per_step = {rl['problems_per_step']}, rl.beta = {rl['beta']}")
    return Settings(
        seed=whole(config["seed"]),
        estimator=text(rl["estimator"]),
        generations=whole(rl["num_generations"]),
        problems_per_step=whole(rl["problems_per_step"]),
        beta=real(rl["beta"]),
        max_grad_norm=real(rl["max_grad_norm"]),
        every=tuple(_flat(config)),
    )


def _problems(data: dict[str, Any]) -> Problems:
    problems = {split: tuple(text(prompt) for prompt in data[split]) for split in SPLITS}
    if not all(problems.values()):
        raise ValueError("a split has no problems")
    return problems


def _history(rows: list[dict[str, Any]]) -> tuple[tuple[WarmupStep, ...], tuple[RLStep, ...]]:
    warmup = tuple(
        WarmupStep(whole(row["step"]), real(row["negative_log_likelihood"])) for row in rows if row["phase"] == "warmup"
    )
    return warmup, tuple(_rl_step(row) for row in rows if row["phase"] == "rl")


def _rl_step(row: dict[str, Any]) -> RLStep:
    return RLStep(
        step=whole(row["step"]),
        problems=tuple(whole(problem) for problem in row["problems"]),
        strict_reward=share(row["strict_reward"]),
        log_ratio=real(row["log_ratio"]),
        shaped_return=real(row["return"]),
        grad_norm=real(row["grad_norm"]),
        clipped_grad_norm=real(row["clipped_grad_norm"]),
        zero_signal_groups=whole(row["zero_signal_groups"]),
        trajectories=whole(row["trajectories"]),
        exact=_exact(row["exact"]) if "exact" in row else None,
    )


def _exact(record: dict[str, Any]) -> Exact:
    return Exact(
        success={split: share(record[split]["success"]) for split in SPLITS},
        kl={split: real(record[split]["kl"]) for split in SPLITS},
    )


def _timing(rows: list[dict[str, Any]]) -> Timing:
    timed = [(str(row["phase"]), real(row["seconds"])) for row in rows if "seconds" in row]
    return Timing(
        warmup=sum((seconds for phase, seconds in timed if phase == "warmup"), 0.0),
        rl=sum((seconds for phase, seconds in timed if phase == "rl"), 0.0),
        steps=len(timed),
        resumed=sum(row.get("event") == "resumed" for row in rows),
    )


def _results(recorded: dict[str, Any], problems: Problems, rl: tuple[RLStep, ...]) -> Results:
    points = {
        point: {split: _point(recorded["points"][point][split], len(problems[split])) for split in SPLITS}
        for point in POINTS
    }
    plan, spent = recorded["plan"], recorded["spent"]
    visits, trajectories = _taken(rl, len(problems["train"]))
    return Results(
        points=points,
        plan=_budget(plan, _pair(plan["visits_per_problem"]), _pair(plan["trajectories_per_problem"])),
        spent=_budget(spent, visits, trajectories),
        zero_signal_groups=whole(spent["zero_signal_groups"]),
        zero_signal_steps=whole(spent["zero_signal_steps"]),
        tensors=tuple(_tensor(one) for one in recorded["tensors"]),
        reference_digests=_texts(recorded["reference_digests"]),
    )


def _budget(record: dict[str, Any], visits: tuple[int, int], trajectories: tuple[int, int]) -> Budget:
    return Budget(
        warmup_steps=whole(record["warmup_steps"]),
        rl_steps=whole(record["rl_steps"]),
        training_trajectories=whole(record["training_trajectories"]),
        visits=visits,
        trajectories_per_problem=trajectories,
        evaluation_samples=whole(record["evaluation_samples"]),
    )


def _taken(rl: tuple[RLStep, ...], problems: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Count from the history: fewest and most visits to one training problem, and trajectories drawn for one."""
    visits, trajectories = Counter[int](), Counter[int]()
    for step in rl:
        for problem in step.problems:
            visits[problem] += 1
            trajectories[problem] += step.trajectories // len(step.problems)
    seen = [visits[problem] for problem in range(problems)]
    drawn = [trajectories[problem] for problem in range(problems)]
    return (min(seen), max(seen)), (min(drawn), max(drawn))


def _point(record: dict[str, Any], problems: int) -> Point:
    sampled = record["sampled"]
    success = tuple(share(value) for value in record["problems"]["success"])
    kl = tuple(real(value) for value in record["problems"]["kl"])
    if not len(success) == len(kl) == problems:
        raise ValueError(f"{len(success)} success values and {len(kl)} KL values for {problems} problems")
    if not 0 < real(sampled["level"]) < 1:
        raise ValueError(f"level {sampled['level']}")
    return Point(
        success=share(record["success"]),
        kl=real(record["kl"]),
        successes=whole(sampled["successes"]),
        trials=whole(sampled["trials"]),
        low=share(sampled["low"]),
        high=share(sampled["high"]),
        level=real(sampled["level"]),
        problem_success=success,
        problem_kl=kl,
    )


def _tensor(record: dict[str, Any]) -> Tensor:
    return Tensor(
        name=text(record["name"]),
        shape=tuple(whole(size) for size in record["shape"]),
        max_abs_change=real(record["max_abs_change"]),
        last_gradient_norm=real(record["last_gradient_norm"]),
    )
