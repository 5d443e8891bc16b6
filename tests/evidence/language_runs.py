"""A finished language run of a few kilobytes, made by hand: its weights are written here, byte by byte."""

from __future__ import annotations

import itertools
import json
import struct
from pathlib import Path
from typing import Any

import tomli_w

from assay.evaluation.answers import Answer, point_record
from assay.evaluation.compare import compare_points
from assay.evidence.language.history import STATUSES, add_up
from assay.evidence.language.weights import BASE, weight_files
from assay.evidence.tensors import tensors_digest
from assay.runs.language.data import write_data
from assay.runs.language.layout import Layout
from assay.runs.language.seal import seal
from assay.types import Outcome, TextProblem

REFERENCE = "a" * 64
CONFIG: dict[str, Any] = {
    "model": "org/name",
    "data": "problems.jsonl",
    "reward": "exact",
    "lora": 0,
    "seed": 29,
    "save_steps": 2,
    "warmup": {"steps": 2, "learning_rate": 1e-3, "max_grad_norm": 1.0},
    "rl": {
        "algorithm": "rloo",
        "steps": 5,
        "problems_per_step": 2,
        "num_generations": 4,
        "learning_rate": 1e-3,
        "max_grad_norm": 1.0,
        "max_completion_length": 8,
    },
    "evaluation": {"samples": 3, "greedy": True},
}
WEIGHTS = {"a.weight": (2, 3), "b.bias": (3,), "c.weight": (4, 2)}


def floats(shape: tuple[int, ...], first: float) -> bytes:
    """Return a float32 tensor that counts up, as bytes."""
    count = 1
    for size in shape:
        count *= size
    return struct.pack(f"<{count}f", *(first + n for n in range(count)))


def safetensors(tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> bytes:
    """Return a safetensors file of name -> (type, shape, bytes), written from the format's description."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())


def write_weights(folder: Path, first: float, *, shards: int = 1, name: str = "model") -> None:
    """Write the tensors of ``WEIGHTS``, in one file or in several with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {key: ("F32", shape, floats(shape, first)) for key, shape in WEIGHTS.items()}
    if shards == 1:
        (folder / f"{name}.safetensors").write_bytes(safetensors(tensors))
        return
    keys = [list(tensors)[n::shards] for n in range(shards)]
    files = {f"model-{n:05}-of-{shards:05}.safetensors": part for n, part in enumerate(keys, 1)}
    for file, part in files.items():
        (folder / file).write_bytes(safetensors({key: tensors[key] for key in part}))
    size = sum(len(data) for _, _, data in tensors.values())
    index = {
        "metadata": {"total_size": size},
        "weight_map": {key: file for file, part in files.items() for key in part},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def problems() -> dict[str, list[TextProblem]]:
    """Return four training problems and three held-out ones, one of them with a training problem's prompt."""
    train = [TextProblem(n, f"{n}+1=", str(n + 1), {"level": n}) for n in range(4)]
    return {"train": train, "test": [TextProblem(n, f"{n % 5}+1=", str(n + 1)) for n in (4, 5, 6)]}


def answer(point: int, problem: int, sample: int) -> Answer:
    """Return a fixed answer of a mixed kind; later points are right more often."""
    kind = (problem + sample) % 4
    if kind <= point:
        return Answer(Outcome(1.0, "right"), truncated=False, parsed=True)
    if kind == 3:
        return Answer(Outcome(None, "timeout"), truncated=True, parsed=False)
    return Answer(Outcome(0.0, "wrong"), truncated=problem % 2 == 0, parsed=True)


def sample_row(point: str, split: str, problem: int, sample: int | None, made: Answer) -> dict[str, Any]:
    """Return a row of ``samples.jsonl``."""
    return {
        "point": point,
        "split": split,
        "problem": problem,
        "sample": sample,
        "text": f"{problem}\n\u2028</script>",
        "status": made.outcome.status,
        "score": made.outcome.score,
        "truncated": made.truncated,
        "in_format": made.in_format,
    }


def evaluated(points: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the records of the points, made by the package's own evaluation, and the rows they were made of."""
    records: dict[str, Any] = {name: {} for name in points}
    rows = []
    for at, name in enumerate(points):
        for split, asked in problems().items():
            numbers = [problem.number for problem in asked]
            sampled = [[answer(at, number, sample) for sample in range(3)] for number in numbers]
            greedy = [answer(at, number, 7) for number in numbers]
            records[name][split] = point_record(numbers, sampled, greedy=greedy, pass_k=(1, 2))
            for number, given, best in zip(numbers, sampled, greedy, strict=True):
                rows += [sample_row(name, split, number, sample, made) for sample, made in enumerate(given)]
                rows.append(sample_row(name, split, number, None, best))
    return records, rows


def history(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a record for each planned step; the second RL step has no signal and is not applied."""
    rows: list[dict[str, Any]] = [
        {"phase": "warmup", "step": n + 1, "grad_norm": 2.0, "clipped_grad_norm": 1.0, "learning_rate": 1e-3}
        for n in range(config["warmup"]["steps"])
    ]
    for n in range(config["rl"]["steps"]):
        applied = n != 1
        groups = {"informative": 1, "all_right": 1} if applied else {"all_wrong": 1, "unscorable": 1}
        outcomes = {"right": 5, "wrong": 3} if applied else {"wrong": 4, "error": 4}
        rows.append(
            {
                "phase": "rl",
                "step": n + 1,
                "problems": [2 * n % 4, (2 * n + 1) % 4],
                "outcomes": {**dict.fromkeys(STATUSES, 0), **outcomes},
                "groups": {
                    **dict.fromkeys(("informative", "all_right", "all_wrong", "all_equal", "unscorable"), 0),
                    **groups,
                },
                "stepped": applied,
                "grad_norm": 0.5 * applied,
                "clipped_grad_norm": 0.5 * applied,
                "learning_rate": 1e-3,
                "frac_reward_zero_std": 0.5 if applied else 1.0,
                "kl": 0.01 * n,
                "num_tokens": 40 * (n + 1),
                "completions/min_length": 2.0,
                "completions/mean_length": 5.0,
                "completions/max_length": 8.0,
                "completions/clipped_ratio": 0.25,
            }
        )
    return rows


def comparisons(records: dict[str, Any]) -> dict[str, Any]:
    """Return the gains between the points, made by the package's own evaluation."""
    points = list(records)
    pairs = {"total": (points[0], points[-1])} | {b: (a, b) for a, b in itertools.pairwise(points)}
    return {
        split: {name: compare_points(records[a][split], records[b][split]) for name, (a, b) in pairs.items()}
        for split in ("train", "test")
    }


def write_json(path: Path, value: Any) -> None:
    """Write JSON."""
    path.write_text(json.dumps(value))


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write one JSON object a line."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def build(root: Path, *, lora: int = 0, warmup: int = 2, rl: int = 5, shards: int = 2, control: bool = True) -> Path:
    """Write a finished run and seal it."""
    config = {
        **CONFIG,
        "lora": lora,
        "warmup": {**CONFIG["warmup"], "steps": warmup},
        "rl": {**CONFIG["rl"], "steps": rl},
    }
    layout = Layout(root)
    root.mkdir()
    layout.config.write_text(tomli_w.dumps(config))
    write_data(layout, problems(), {"source": "problems.jsonl"})
    write_json(layout.environment, {"assay": "0", "source": "b" * 64, "packages": {"torch": "2.13.0+cpu"}})
    base = "b" * 64 if warmup or lora else REFERENCE
    for folder, first in (("model", 1.0), *([("warmup", 2.0)] if warmup else [])):
        name = "adapter_model" if lora else "model"
        write_weights(root / folder, first, shards=1 if lora else shards, name=name)
        write_json(root / folder / "tokenizer.json", {})
        write_json(root / folder / ("adapter_config.json" if lora else "config.json"), {})
        if lora:
            write_json(root / folder / BASE, {"name": "org/name", "digest": base})
    (root / "model" / "README.md").write_text("card")
    write_weights(layout.checkpoint, 1.0)
    write_weights(layout.checkpoint, 0.0, name="optimizer")
    write_json(layout.checkpoint / "state.json", {})
    records, samples = evaluated(["base", *(["warmup"] if warmup else []), *(["rl"] if rl else [])])
    controls = {}
    if control:
        asked = [problem.number for problem in problems()["test"]]
        given = [[answer(1, number, sample) for sample in range(3)] for number in asked]
        test = point_record(asked, given)
        controls = {"random_reward": {"test": test, "comparison": compare_points(test, records["rl"]["test"])}}
        samples += [
            sample_row("random_reward", "test", number, sample, made)
            for number, row in zip(asked, given, strict=True)
            for sample, made in enumerate(row)
        ]
    rows = history(config)
    digests = {
        "base": base,
        "reference": dict.fromkeys(("start", "step 2", "step 4", "end"), REFERENCE),
        "policy": tensors_digest(weight_files(layout.model)),
    }
    if warmup:
        digests["warmup"] = tensors_digest(weight_files(layout.warmup))
    write_rows(layout.metrics, rows)
    write_rows(layout.samples, samples)
    clock = [{"event": "started", "time": "2026-01-31T10:00:00.000Z"}, {"phase": "rl", "step": 1, "seconds": 0.1}]
    write_rows(layout.timing, [*clock, {"event": "finished", "time": "2026-01-31T10:01:00.000Z"}])
    results = {
        "plan": {"estimand": "The expected update is the gradient of the expected reward."},
        "spent": add_up(rows),
        "points": records,
        "gains": comparisons(records),
        "controls": controls,
        "digests": digests,
        "format": None,
    }
    write_json(layout.results, results)
    seal(layout, config, lambda place: "<p>page</p>")
    return root
