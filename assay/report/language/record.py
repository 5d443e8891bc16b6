"""A finished language run as its report sees it, read from its files, which are trusted for nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.evidence.files import each_row, entries_of, read_json, read_rows, read_toml
from assay.report.values import real, share, text, whole

POINTS = ("base", "warmup", "rl")
SPLITS = ("train", "test")
STATUSES = ("right", "wrong", "unparseable", "timeout", "error")
KINDS = ("informative", "all_right", "all_wrong", "all_equal", "unscorable")
SHOWN = 8
"""Problems whose greedy responses are shown side by side."""
CLIP = 400
"""Characters of a prompt or a response that are shown."""
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Rate:
    """A success rate with its interval; ``right`` of ``of`` responses."""

    right: int
    of: int
    rate: float
    low: float
    high: float


@dataclass(frozen=True)
class Point:
    """One point of a run on one split.

    Attributes:
        sampled: None where nothing was sampled.
        greedy: None where it was not asked for.
        passes: pass@k by k.
        outcomes: sampled responses, or greedy ones where none were sampled, by status.
        in_format: share of these.
        truncated: share of these.
    """

    sampled: Rate | None
    greedy: Rate | None
    passes: Mapping[int, Rate]
    outcomes: Mapping[str, int]
    in_format: float
    truncated: float


@dataclass(frozen=True)
class Shown:
    """A test problem and what was answered to it greedily, by point: the text and its status."""

    prompt: str
    answer: str
    said: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class LanguageRun:
    """What the page is made of.

    Attributes:
        config: every setting, by dotted name.
        model: that was trained.
        points: by point and split.
        controls: by name, on the test problems.
        words: sentences of the results: ``gains`` by split and phase, ``format``, ``controls``.
        bounds: of the mean success on test, by point: low, high.
        steps: records of RL.
        warmup: records of the warm-up.
        plan: what was planned and is ascended.
        spent: what was spent.
        signal: what the groups came to.
        overlap: what the splits share.
        tested: claims of the verifier's self-test: name, verdict, detail.
        sizes: problems of each split.
        digests: named digests.
        environment: named values.
        shown: some test problems.
    """

    config: Mapping[str, str]
    model: str
    points: Mapping[str, Mapping[str, Point]]
    controls: Mapping[str, Point]
    words: Mapping[str, Any]
    bounds: Mapping[str, tuple[float, float]]
    steps: tuple[Mapping[str, Any], ...]
    warmup: tuple[Mapping[str, Any], ...]
    plan: Mapping[str, Any]
    spent: Pairs
    signal: Mapping[str, Any]
    overlap: Mapping[str, int]
    tested: tuple[tuple[str, str, str], ...]
    sizes: Mapping[str, int]
    digests: Pairs
    environment: Pairs
    shown: tuple[Shown, ...]

    @property
    def last(self) -> str:
        """Return the last point that there is."""
        return list(self.points)[-1]


def read_language_run(place: Path) -> LanguageRun:
    """Read a finished run.

    Raises:
        RunError: a file is missing or cannot be read.
        EvidenceError: a file cannot be parsed, or an entry is missing or of the wrong kind.
    """
    with entries_of("config.toml"):
        config = dict(_flat(read_toml(place / "config.toml")))
        model = config["model"]
    with entries_of("results.json"):
        results = read_json(place / "results.json")
        points = {
            name: {split: _point(results["points"][name][split]) for split in SPLITS}
            for name in POINTS
            if name in results["points"]
        }
        controls = {text(name): _point(made["test"]) for name, made in results["controls"].items()}
        words = _words(results)
        bounds = {text(name): _bound(made["test"]) for name, made in results["bounds"].items()}
        plan = {name: results["plan"][name] for name in ("algorithm", "estimand", "objective", "settings", "advice")}
        spent = tuple((text(name).replace("_", " "), f"{whole(value):,}") for name, value in results["spent"].items())
        signal = {
            "groups": {kind: whole(results["signal"]["groups"].get(kind, 0)) for kind in KINDS},
            "share": share(results["signal"]["informative_share"]),
            "a_step": real(results["signal"]["effective_groups_per_step"]),
            "advice": None if results["signal"]["advice"] is None else text(results["signal"]["advice"]),
        }
        digests = tuple(_flat(results["digests"]))
    with entries_of("metrics.jsonl"):
        rows = [_step(row) for row in read_rows(place / "metrics.jsonl")]
    with entries_of("data.json"):
        data = read_json(place / "data.json")
        overlap = {text(name).replace("_", " "): whole(value) for name, value in data["overlap"].items()}
        sizes = {split: whole(data["splits"][split]["rows"]) for split in SPLITS}
        claims = data.get("self_test", {}).get("claims", [])
        tested = tuple((text(c["name"]), text(c["verdict"]), text(c["detail"])) for c in claims)
    with entries_of("environment.json"):
        environment = tuple(_flat(read_json(place / "environment.json")))
    with entries_of("samples.jsonl or data/test.jsonl"):
        shown = tuple(_shown(place, list(points)))
    return LanguageRun(
        config=config,
        model=model,
        points=points,
        controls=controls,
        words=words,
        bounds=bounds,
        steps=tuple(row for row in rows if row["phase"] == "rl"),
        warmup=tuple(row for row in rows if row["phase"] == "warmup"),
        plan=plan,
        spent=spent,
        signal=signal,
        overlap=overlap,
        tested=tested,
        sizes=sizes,
        digests=digests,
        environment=environment,
        shown=shown,
    )


def _point(record: Any) -> Point:
    sampled, greedy = record["sampled"], record["greedy"]
    counted = sampled or greedy
    passes = {}
    if sampled is not None:
        of = whole(sampled["samples"])
        passes = {int(k): _rate(made, 0, of, made["interval"]) for k, made in sampled["pass_at_k"].items()}
    return Point(
        sampled=None
        if sampled is None
        else _rate(sampled, whole(sampled["outcomes"]["right"]), whole(sampled["samples"]), sampled["interval"]),
        greedy=None if greedy is None else _rate(greedy, whole(greedy["right"]), whole(greedy["of"]), greedy["wilson"]),
        passes=passes,
        outcomes={status: whole(counted["outcomes"][status]) for status in STATUSES},
        in_format=share(counted["in_format_share"]),
        truncated=share(counted["truncated_share"]),
    )


def _rate(record: Any, right: int, of: int, interval: Any) -> Rate:
    low, high = interval
    return Rate(right, of, share(record["rate"]), share(low), share(high))


def _words(results: Any) -> dict[str, Any]:
    gains = {
        split: {text(name): text(made["words"]) for name, made in results["gains"][split].items() if made is not None}
        for split in SPLITS
    }
    parted = results["format"]
    controls = {text(name): text(made["comparison"]["words"]) for name, made in results["controls"].items()}
    return {"gains": gains, "format": None if parted is None else text(parted["words"]), "controls": controls}


def _bound(record: Any) -> tuple[float, float]:
    return share(record["low"]), share(record["high"])


def _step(row: Any) -> Mapping[str, Any]:
    """Return the entries of a step that are drawn, checked."""
    made: dict[str, Any] = {
        "phase": text(row["phase"]),
        "step": whole(row["step"]),
        "grad_norm": real(row["grad_norm"]),
    }
    made["clipped_grad_norm"] = real(row["clipped_grad_norm"])
    if made["phase"] == "warmup":
        return {**made, "nll": real(row["negative_log_likelihood"])}
    made |= {name: real(row[name]) for name in ("reward", "kl")}
    made["entropy"] = real(row["entropy"]) if "entropy" in row else None
    made["length"] = real(row["completions/mean_length"])
    gap = row.get("sampling/sampling_logp_difference/max")
    made["gap"] = None if gap is None else real(gap)
    made["groups"] = {kind: whole(row["groups"].get(kind, 0)) for kind in KINDS}
    made["test"] = share(row["test"]["rate"]) if "test" in row else None
    return made


def _shown(place: Path, points: list[str]) -> Iterator[Shown]:
    """Yield the first test problems with their greedy responses at each point, sampled ones where none are greedy."""
    problems: dict[Any, tuple[str, str]] = {}
    for row in each_row(place / "data" / "test.jsonl"):
        if len(problems) == SHOWN:
            break
        prompt = row["prompt"] if isinstance(row["prompt"], str) else row["prompt"][-1]["content"]
        problems[row["number"]] = (_clipped(prompt, end=True), _clipped(row["answer"] or ""))
    said: dict[Any, dict[str, tuple[str, str]]] = {number: {} for number in problems}
    for row in each_row(place / "samples.jsonl"):
        if row["split"] == "test" and row["problem"] in said and row["point"] in points:
            known = said[row["problem"]]
            if row["sample"] is None or row["point"] not in known:
                known[row["point"]] = (_clipped(row["text"]), text(row["status"]))
    for number, (prompt, answer) in problems.items():
        yield Shown(prompt, answer, said[number])


def _clipped(value: Any, *, end: bool = False) -> str:
    whole_text = str(value)
    part = whole_text[-CLIP:] if end else whole_text[:CLIP]
    mark = "…" if len(part) < len(whole_text) else ""
    return mark + text(part) if end else text(part) + mark


def _flat(record: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{text(name)}.")
        else:
            yield f"{prefix}{text(name)}", text(value)
