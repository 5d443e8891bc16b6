"""Rewards that a model of random weights can earn, so that its groups have signal."""

from __future__ import annotations

from typing import Any


def even(completions: list[str], **columns: Any) -> list[float | None]:
    """Score a response by whether its bytes add up to an even number; an empty one has no score."""
    return [float(sum(text.encode()) % 2 == 0) if text else None for text in completions]


def nan(completions: list[str], **columns: Any) -> list[float]:
    """Return what is no reward."""
    return [float("nan")] * len(completions)


def short(completions: list[str], **columns: Any) -> list[float]:
    """Return too few rewards."""
    return [1.0] * (len(completions) - 1)
