"""What a finished language run came to: rates with intervals, gains with their verdicts, and what they may hide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from assay.evidence.files import printable

Record = Mapping[str, Any]

POINTS = {"base": "base", "warmup": "after warm-up", "rl": "after RL"}
TESTS = (("sampled", "permutation", "permutation_p"), ("greedy", "McNemar", "mcnemar_p"))
GAINS = {"warmup": "warm-up", "rl": "RL", "total": "in all"}


def show_language_results(console: Console, results: Record, overlap: Mapping[str, int]) -> None:
    """Print a finished run's results.

    Args:
        console: where to.
        results: the content of ``results.json``. ``bounds`` holds records of
            :func:`assay.evaluation.bounds.bounds_record` by point and split, ``format`` one of
            :func:`assay.evaluation.format_share.format_share`; each may be missing.
        overlap: what the splits share, counted by kind.
    """
    points = [point for point in POINTS if point in results["points"]]
    for split in ("train", "test"):
        rows = {POINTS[point]: results["points"][point][split] for point in points}
        if split == "test":
            rows |= {f"control: {name}": made["test"] for name, made in results.get("controls", {}).items()}
        console.print(rates_table(split, rows))
    for line in [*gain_lines(results), *caution_lines(results, overlap)]:
        console.print(Text(printable(line)), soft_wrap=True)


def show_language_evaluation(
    console: Console, split: str, points: Mapping[str, Record], gains: Mapping[str, Record | None]
) -> None:
    """Print the points of a run on one split, measured again.

    Args:
        console: where to.
        split: which problems.
        points: records of :func:`assay.evaluation.answers.point_record`, by point.
        gains: of :func:`assay.evaluation.compare.compare_points`, by phase.
    """
    console.print(rates_table(split, {POINTS[name]: record for name, record in points.items()}))
    for line in gain_lines({"gains": {split: gains}}):
        console.print(Text(printable(line)), soft_wrap=True)


def rates_table(split: str, rows: Mapping[str, Record]) -> Table:
    """Return one row a point: sampled and greedy rates with their intervals, and what was not an answer.

    Args:
        split: which problems.
        rows: records of :func:`assay.evaluation.answers.point_record`, by what the point is called.
    """
    level = next(iter(rows.values()))["level"]
    table = Table(title=f"{split} problems", title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("")
    tries = sorted({int(k) for row in rows.values() if row["sampled"] for k in row["sampled"]["pass_at_k"]} - {1})
    headings = ("sampled", f"{level:.0%} interval", "greedy", f"{level:.0%} interval")
    for heading in (*headings, *(f"pass@{k}" for k in tries), "in format", "cut off", "no score"):
        table.add_column(heading, justify="right")
    for name, row in rows.items():
        cells = [*_rates(row), *_passes(row["sampled"], tries), *_shares(row["sampled"] or row["greedy"])]
        table.add_row(Text(printable(name)), *cells)
    return table


def gain_lines(results: Record) -> list[str]:
    """Return what each phase gained, on each split, with the verdict on it."""
    lines = []
    for split, gains in results["gains"].items():
        for name, made in gains.items():
            if made is not None and not (name == "total" and gains.get("warmup") is None):
                lines.append(f"{split}, {GAINS[name]}: {_comparison(made)}")
    return lines


def caution_lines(results: Record, overlap: Mapping[str, int]) -> list[str]:
    """Return what a gain may hide: controls, format, what is certain, and what the splits share."""
    lines = [
        f"RL against the control {name}: {_comparison(made['comparison'])}"
        for name, made in results.get("controls", {}).items()
    ]
    if made := results.get("format"):
        lines.append(f"format: {made['words']}")
    for point, splits in (results.get("bounds") or {}).items():
        for split, made in splits.items():
            lines.append(
                f"certain, {POINTS[point]}, {split}: success from {made['low']:.2%} to {made['high']:.2%}"
                f"{', the whole response tree seen' if made['complete'] else ''}"
            )
    shared = ", ".join(f"{count} {kind}" for kind, count in overlap.items() if count)
    lines.append(f"both splits have: {shared}; test rates may be too high" if shared else "the splits share nothing")
    return lines


def _rates(row: Record) -> list[str]:
    """Return the sampled rate, its interval, the greedy count, its interval; empty where nothing was drawn so."""
    sampled, greedy = row["sampled"], row["greedy"]
    first = [f"{sampled['rate']:.1%}", _interval(sampled["interval"])] if sampled else ["", ""]
    return [*first, *([f"{greedy['right']}/{greedy['of']}", _interval(greedy["wilson"])] if greedy else ["", ""])]


def _passes(sampled: Record | None, tries: list[int]) -> list[str]:
    found = sampled["pass_at_k"] if sampled else {}
    return [f"{found[str(k)]['rate']:.1%}" if str(k) in found else "" for k in tries]


def _shares(record: Record) -> list[str]:
    return [f"{record[name]:.1%}" for name in ("in_format_share", "truncated_share", "unscorable_share")]


def _interval(ends: list[float]) -> str:
    return f"{ends[0]:.1%} to {ends[1]:.1%}"


def _comparison(made: Record) -> str:
    """Return a comparison's sentence, what it is of, and its p-values."""
    tests = [f"{name} p {made[basis][key]:.2g}" for basis, name, key in TESTS if made[basis]]
    return f"{made['words']}, {made['basis']} answers; {', '.join(tests)}"
