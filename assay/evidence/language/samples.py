"""The evaluated responses of a language run, counted again: ``results.json`` must say what ``samples.jsonl`` holds."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

from assay.evidence.files import each_row, entries_of, read_json, read_toml
from assay.evidence.language.contents import SPLITS
from assay.evidence.language.history import STATUSES

Row = dict[str, Any]
Record = dict[str, Any]
TYPES: dict[str, tuple[type, ...]] = {
    "point": (str,),
    "split": (str,),
    "problem": (int,),
    "sample": (int, type(None)),
    "text": (str,),
    "status": (str,),
    "score": (float, int, type(None)),
    "truncated": (bool,),
    "in_format": (bool,),
}
"""What a row of ``samples.jsonl`` holds, and nothing else. A greedy response has no sample number."""
SLACK = 1e-12
COUNTS = ("of", "right", "in_format", "unscorable")


def check_row(row: Row) -> str | None:
    """Return what is wrong with a row of ``samples.jsonl``; None when nothing is."""
    if set(row) != set(TYPES):
        return f"must hold {', '.join(TYPES)}; differs in {', '.join(sorted(set(row) ^ set(TYPES)))}"
    for name, types in TYPES.items():
        if type(row[name]) not in types:
            return f"{name} is {row[name]!r}"
    if row["status"] not in STATUSES:
        return f"status is {row['status']!r}"
    if row["status"] == "right" and row["score"] is None:
        return "it is right and has no score"
    return None


class Tally:
    """What the responses of one point and split come to, all of one kind (sampled or greedy)."""

    def __init__(self) -> None:
        self.problems: dict[int, dict[str, int]] = defaultdict(lambda: dict.fromkeys(COUNTS, 0))
        self.outcomes = dict.fromkeys(STATUSES, 0)
        self.truncated = 0

    def add(self, row: Row) -> None:
        """Count one response."""
        counts = self.problems[row["problem"]]
        counts["of"] += 1
        counts["right"] += row["status"] == "right"
        counts["in_format"] += row["in_format"]
        counts["unscorable"] += row["score"] is None
        self.outcomes[row["status"]] += 1
        self.truncated += row["truncated"]

    def shares(self) -> Record:
        """Return the entries of the point's record that are over all responses."""
        total = sum(self.outcomes.values())

        def share(name: str) -> float:
            return sum(counts[name] for counts in self.problems.values()) / total

        rates = [counts["right"] / counts["of"] for counts in self.problems.values()]
        return {
            "outcomes": self.outcomes,
            "rate": math.fsum(rates) / len(rates),
            "unscorable_share": share("unscorable"),
            "in_format_share": share("in_format"),
            "truncated_share": self.truncated / total,
        }


Key = tuple[str, str, str]
"""Point, split, and ``"sampled"`` or ``"greedy"``."""


@entries_of("samples.jsonl, results.json or config.toml")
def check_samples(place: Path) -> list[str]:
    """Return where ``results.json`` does not say what ``samples.jsonl`` holds, one line a finding."""
    config, results = read_toml(place / "config.toml"), read_json(place / "results.json")
    tallies, findings = _count(place / "samples.jsonl")
    points = ["base", *(phase for phase in ("warmup", "rl") if config[phase]["steps"])]
    if sorted(results["points"]) != sorted(points):
        return [f"results.json: its points are {', '.join(results['points'])}, planned {', '.join(points)}"]
    records = {(name, split): point[split] for name, point in results["points"].items() for split in SPLITS}
    records |= {(name, "test"): control["test"] for name, control in results.get("controls", {}).items()}
    numbers = {split: {row["number"] for row in each_row(place / "data" / f"{split}.jsonl")} for split in SPLITS}
    for (point, split), record in records.items():
        problems = {row["problem"] for row in record["per_problem"]}
        if not problems <= numbers[split] or (split == "test" and problems != numbers[split]):
            findings.append(f"results.json: {point} on {split}: its problems are not those of data/{split}.jsonl")
        for kind in ("sampled", "greedy"):
            where = f"results.json: {point} on {split}, {kind}"
            findings += [f"{where}: {what}" for what in _compare(record, kind, tallies.pop((point, split, kind), None))]
        of = config["evaluation"]["samples"]
        if any(row["sampled"]["of"] != of for row in record["per_problem"] if row["sampled"]):
            findings.append(f"results.json: {point} on {split}: not {of} samples of each problem, as planned")
    findings += [f"samples.jsonl: holds {kind} responses of {point} on {split}, which has no record"
                 for point, split, kind in tallies]  # fmt: skip
    return findings + _check_gains(results, points)


def _count(path: Path) -> tuple[dict[Key, Tally], list[str]]:
    """Return the counted responses, and what is wrong with the rows."""
    tallies: dict[Key, Tally] = defaultdict(Tally)
    findings, seen = [], set()
    for line, row in enumerate(each_row(path), 1):
        if wrong := check_row(row):
            findings.append(f"samples.jsonl: line {line}: {wrong}")
            continue
        address = row["point"], row["split"], row["problem"], row["sample"]
        if address in seen:
            findings.append(f"samples.jsonl: line {line}: {address} is there twice")
        seen.add(address)
        tallies[row["point"], row["split"], "greedy" if row["sample"] is None else "sampled"].add(row)
    return dict(tallies), findings


def _compare(record: Record, kind: str, tally: Tally | None) -> list[str]:
    """Return where one kind of answers of a point's record is not what was counted."""
    rows = {row["problem"]: row[kind] for row in record["per_problem"]}
    if tally is None:
        empty = record[kind] is None and not any(rows.values())
        return [] if empty else ["samples.jsonl holds no such response"]
    if record[kind] is None:
        return ["is null, samples.jsonl holds such responses"]
    findings = []
    for problem in sorted(set(rows) | set(tally.problems)):
        said, counted = rows.get(problem), tally.problems.get(problem)
        if said is None or counted is None or any(said[name] != counted[name] for name in COUNTS):
            findings.append(f"problem {problem} has {said}, counted {counted}")
        elif not _near(said["rate"], counted["right"] / counted["of"]):
            findings.append(f"problem {problem} has rate {said['rate']}, counted {counted}")
    for name, value in tally.shares().items():
        said = record[kind][name]
        if said != value if isinstance(value, dict) else not _near(said, value):
            findings.append(f"{name} is {said}, counted {value}")
    for k, said in record[kind].get("pass_at_k", {}).items():
        each = [_pass_at_k(counts["right"], counts["of"], int(k)) for counts in tally.problems.values()]
        if not _near(said["rate"], math.fsum(each) / len(each)):
            findings.append(f"pass@{k} is {said['rate']}, the counts give {math.fsum(each) / len(each)}")
    return findings


def _pass_at_k(right: int, of: int, k: int) -> float:
    """Return the unbiased estimate of pass@k: the share of k-subsets of the samples with a right one among them."""
    return 1 - math.comb(of - right, k) / math.comb(of, k)


def _check_gains(results: Record, planned: list[str]) -> list[str]:
    """Return which differences between points are not those of their counts."""
    points = results["points"]
    steps = {after: (before, after) for before, after in itertools.pairwise(planned)}
    steps["total"] = (planned[0], planned[-1])
    pairs = [
        (f"gains.{split}.{name}", points[steps[name][0]][split], points[steps[name][1]][split], gain)
        for split, gains in results["gains"].items()
        for name, gain in gains.items()
        if gain is not None
    ]
    pairs += [
        (f"controls.{name}.comparison", control["test"], points["rl"]["test"], control["comparison"])
        for name, control in results.get("controls", {}).items()
    ]
    return [f"results.json: {name}: {what}" for name, *pair in pairs for what in _check_gain(*pair)]


def _check_gain(before: Record, after: Record, gain: Record) -> list[str]:
    findings = []
    for kind in ("sampled", "greedy"):
        if gain[kind] is None:
            continue
        first = {row["problem"]: row[kind] for row in before["per_problem"]}
        rates = [(first[row["problem"]]["rate"], row[kind]["rate"]) for row in after["per_problem"]]
        difference = math.fsum(late - early for early, late in rates) / len(rates)
        if not _near(gain[kind]["difference"], difference):
            findings.append(f"{kind} difference is {gain[kind]['difference']}, the points give {difference}")
        if kind == "greedy":
            lost, gained = sum(a > b for a, b in rates), sum(a < b for a, b in rates)
            if (gain[kind]["b"], gain[kind]["c"]) != (lost, gained):
                said = gain[kind]["b"], gain[kind]["c"]
                findings.append(f"greedy b and c are {said}, the points give {(lost, gained)}")
    return findings


def _near(recorded: float, expected: float) -> bool:
    return abs(recorded - expected) <= SLACK
