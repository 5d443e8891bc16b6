"""Exact J and its gradient over a whole tree of 10^L responses: level by level against scoring every full path.

    .venv/bin/python benchmarks/tree.py

A policy of one block, width 64, four heads, feed-forward 256, reads a prompt of 6 tokens and answers L digits. Every
case runs on one thread in a process of its own; where both ways are timed they alternate, and the ratio is taken
within each round. Ratio and share of the floor are of processor time, which other work on the machine disturbs less
than the wall clock. Naive scoring goes through the paths 10,000 rows at a time. Extra memory is the peak of a fresh
process over what it held before the call, weights and rewards included in the latter. The floor is what the matrix
products alone would take at this machine's rate: 6 operations for each weight of the maps that every node goes
through (queries, keys and values depend on token and position alone in a policy of one block) and each node.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from assay.policies.sampling import score
from assay.policies.transformer import TinyTransformer
from assay.tree.neural import tree_return
from assay.tree.prefix import Grammar

DIGITS, WIDTH, ROWS = 10, 64, 10_000
PROMPT = torch.tensor([1, 10, 2, 11, 3, 12])
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def policy(dtype: torch.dtype) -> TinyTransformer:
    """Return the policy of all cases."""
    return TinyTransformer(
        vocabulary=16, responses=DIGITS, context=16, width=WIDTH, heads=4, feedforward=4 * WIDTH, seed=1, dtype=dtype
    )


def levels(model: TinyTransformer, reward: torch.Tensor, length: int) -> tuple[float, dict[str, torch.Tensor], int]:
    """Return J, its gradient and the tokens read, by the tree."""
    made = tree_return(model, PROMPT, Grammar(DIGITS, length), reward)
    return made.value, made.gradient, made.positions


def naive(model: TinyTransformer, reward: torch.Tensor, length: int) -> tuple[float, dict[str, torch.Tensor], int]:
    """Return J, its gradient and the tokens read, by scoring every path from its first token to its last."""
    value, read, weights = 0.0, 0, dict(model.named_parameters())
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for first in range(0, len(reward), ROWS):
        number = torch.arange(first, min(first + ROWS, len(reward)))
        paths = torch.stack([number // DIGITS**place % DIGITS for place in reversed(range(length))], dim=1)
        logp = score(model, PROMPT.expand(len(paths), -1), paths).sum(1)
        share = (logp.exp() * reward[number]).sum()
        for sum_, part in zip(total.values(), torch.autograd.grad(share, list(weights.values())), strict=True):
            sum_ += part
        value, read = value + float(share.detach()), read + len(paths) * (len(PROMPT) + length - 1)
    return value, total, read


WAYS: dict[str, Callable[..., tuple[float, dict[str, torch.Tensor], int]]] = {"levels": levels, "naive": naive}


def rate(dtype: torch.dtype) -> float:
    """Return this machine's matrix-product rate on one thread, operations a second."""
    a = torch.randn(1024, 1024, dtype=dtype)
    times = []
    for _ in range(10):
        began = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - began)
    return 2 * 1024**3 / min(times)


def timed(ways: list[str], dtype: torch.dtype, length: int, rounds: int) -> dict[str, object]:
    """Time the ways in turn and compare what they return."""
    model, reward = policy(dtype), torch.rand(DIGITS**length, generator=torch.Generator().manual_seed(1)).to(dtype)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    cpu: dict[str, list[float]] = {way: [] for way in ways}
    made = {}
    for way in ways:
        WAYS[way](model, reward[: DIGITS**2], 2)
    for _ in range(rounds):
        for way in ways:
            began, used = time.perf_counter(), time.process_time()
            made[way] = WAYS[way](model, reward, length)
            seconds[way].append(time.perf_counter() - began)
            cpu[way].append(time.process_time() - used)
    read = {way: result[2] for way, result in made.items()}
    record: dict[str, object] = {"seconds": seconds, "cpu": cpu, "read": read, "rate": rate(dtype)}
    if len(ways) == 2:
        ours, theirs = made["levels"][1], made["naive"][1]
        largest = max(float(part.abs().max()) for part in theirs.values())
        record["gap"] = max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) / largest
    return record


def extra(way: str, dtype: torch.dtype, length: int) -> dict[str, object]:
    """Return the peak of memory over what the process holds before the call, in MB."""
    model, reward = policy(dtype), torch.zeros(DIGITS**length, dtype=dtype)
    WAYS[way](model, reward[: DIGITS**2], 2)
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    WAYS[way](model, reward, length)
    return {"megabytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before) / 1e6}


def fresh(*case: object) -> dict[str, object]:
    """Run one case in a process of its own."""
    command = [sys.executable, __file__, "--case", *map(str, case)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def row(dtype: str, length: int, ways: list[str], rounds: int) -> None:
    """Measure one size and print a line for each way."""
    record = fresh("time", dtype, length, rounds, *ways)
    matrices = WIDTH**2 + 2 * WIDTH * 4 * WIDTH + WIDTH * DIGITS
    floor = 6 * matrices * record["read"]["levels"]
    for way in ways:
        taken, used = statistics.median(record["seconds"][way]), statistics.median(record["cpu"][way])
        line = f"{dtype} {way:7}{DIGITS**length:12,}{taken:10.3f} s{used:10.3f} s{record['read'][way]:14,}"
        line += f"{fresh('memory', dtype, length, way)['megabytes']:8.0f} MB"
        if way == "levels":
            line += f"{floor / 1e9:9.2f} GFLOP{floor / record['rate'] / used:6.0%}"
        else:
            pairs = zip(record["cpu"][way], record["cpu"]["levels"], strict=True)
            ratio = statistics.median(other / own for other, own in pairs)
            line += f"   {ratio:.0f} times as long; gradients part by {record['gap']:.0e} of the largest entry"
        print(line, flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--largest", type=int, default=7, help="longest response, in digits")
    options.add_argument("--naive", type=int, default=5, help="longest response to score naively too")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--case", nargs="+", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    if chosen.case:
        kind, dtype, length, *rest = chosen.case
        if kind == "time":
            record = timed(rest[1:], DTYPES[dtype], int(length), int(rest[0]))
        else:
            record = extra(rest[0], DTYPES[dtype], int(length))
        print(json.dumps(record))
        return
    print(f"torch {torch.__version__}; one thread; median of rounds, which get fewer as cases get longer")
    print(
        f"{'':15}{'responses':>12}{'wall':>12}{'processor':>12}{'tokens read':>14}{'extra':>11}{'floor, reached':>21}"
    )
    for dtype in DTYPES:
        for length in range(2, chosen.largest + 1):
            ways = ["levels", "naive"] if length <= chosen.naive else ["levels"]
            row(dtype, length, ways, chosen.rounds if length < 5 else 1 if length > 6 else 2)


if __name__ == "__main__":
    main()
