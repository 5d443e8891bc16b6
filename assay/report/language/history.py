"""Read the steps of a language run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.report.language.record import KINDS, RLStep, WarmupStep
from assay.report.values import real, share, whole

Record = Mapping[str, Any]


def read_history(rows: Sequence[Record]) -> tuple[tuple[WarmupStep, ...], tuple[RLStep, ...]]:
    """Return the steps of the warm-up and of RL.

    Raises:
        LookupError, TypeError, ValueError: an entry is missing or makes no sense, or a step is out of its place.
    """
    warmup = tuple(_warmup_step(row) for row in rows if row["phase"] == "warmup")
    rl = tuple(_rl_step(row) for row in rows if row["phase"] != "warmup")
    for numbers in ([step.step for step in warmup], [step.step for step in rl]):
        if numbers != list(range(1, len(numbers) + 1)):
            raise ValueError(f"steps {numbers[:9]} do not count from 1")
    return warmup, rl


def _warmup_step(row: Record) -> WarmupStep:
    return WarmupStep(whole(row["step"]), real(row["negative_log_likelihood"]))


def _rl_step(row: Record) -> RLStep:
    if row["phase"] != "rl":
        raise ValueError(f"phase {row['phase']!r}")
    groups = {kind: whole(row["groups"][kind]) for kind in KINDS}
    if not sum(groups.values()):
        raise ValueError(f"step {row['step']} has no groups")
    gap = row.get("sampling/sampling_logp_difference/max")
    return RLStep(
        step=whole(row["step"]),
        reward=real(row["reward"]),
        log_ratio=real(row["kl"]),
        entropy=real(row["entropy"]) if "entropy" in row else None,
        grad_norm=real(row["grad_norm"]),
        clipped_grad_norm=real(row["clipped_grad_norm"]),
        length=real(row["completions/mean_length"]),
        clipped=share(row["completions/clipped_ratio"]),
        gap=None if gap is None else real(gap),
        groups=groups,
        stepped=row["stepped"] is True,
        test=share(row["test"]["rate"]) if "test" in row else None,
    )
