"""What an RL step of the seed experiment spends on tensors, and what on everything else.

    .venv/bin/python benchmarks/step_share.py

Tensor work is the time inside the calls that only compute: sampling, the two scorings, advantage and loss,
backward with guards, clipping and optimizer. The rest is random numbers, verification, bookkeeping. The floor
is the arithmetic alone at this machine's matrix rate.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from assay.tasks.chain import draw_splits
from assay.training import estimate, loop
from assay.training.config import build_recipe
from assay.training.state import start

STEPS, WARMUP = 400, 50
spent = {"seconds": 0.0}


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its time added to what tensors cost."""

    def call(*arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            spent["seconds"] += time.perf_counter() - began

    return call


def measure(estimator: str) -> tuple[float, float]:
    """Return the median seconds of a step, and the median share of it outside tensor work."""
    size = 8 if estimator == "rloo" else 0
    settings = {"rl": {"estimator": estimator, "num_generations": size, "steps": STEPS + WARMUP}}
    recipe = build_recipe({**settings, "evaluation": {"every": 10**6}}, place="benchmark")
    problems = draw_splits(recipe.seed, train=20, test=20)["train"]
    steps: list[tuple[float, float]] = []

    def emit(record: dict[str, Any], seconds: float) -> None:
        steps.append((seconds, spent["seconds"]))
        spent["seconds"] = 0.0

    hooks = loop.Hooks(emit=emit, save=lambda state: None, monitor=lambda policy, reference: {})
    loop.run(start(recipe), recipe, problems, hooks)
    rl = steps[recipe.warmup.steps + WARMUP :]
    return statistics.median(s for s, _ in rl), statistics.median(1 - t / s for s, t in rl)


def matrix_rate() -> float:
    """Return this machine's float32 matrix-product rate on one thread, operations a second."""
    a = torch.randn(512, 512)
    times = []
    for _ in range(30):
        began = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - began)
    return 2 * 512**3 / min(times)


def main() -> None:
    torch.set_num_threads(1)
    for name in ("sample", "score", "kl_in_reward", "leave_one_out", "weighted_loss", "reinforce_terms", "tree_logp"):
        setattr(estimate, name, timed(getattr(estimate, name)))
    loop.apply_update = timed(loop.apply_update)
    weights = sum(p.numel() for p in start(build_recipe({}, place="benchmark")).policy.parameters())
    # 2 operations a weight and token. Sampling reads 5 prompts of 6 tokens, then 40 rows of 7; policy and reference
    # 40 rows of 7 each; backward costs two forwards.
    operations = 2 * weights * (5 * 6 + 40 * 7 * (1 + 1 + 1 + 2))
    floor = operations / matrix_rate()
    for estimator in ("rloo", "exact"):
        seconds, outside = measure(estimator)
        print(f"{estimator}: {seconds * 1e3:.2f} ms a step, {outside:.0%} of it outside tensor work")
        if estimator == "rloo":
            print(f"  arithmetic alone: {operations / 1e6:.0f} million operations, {floor / seconds:.1%} of the step")


if __name__ == "__main__":
    main()
