"""Witnesses that a person can read: the first few, with numbers that can be told apart."""

from __future__ import annotations

from collections.abc import Iterable


def few(findings: Iterable[str], most: int = 5) -> list[str]:
    """Return the first findings; where there are more than ``most``, the last line counts the others.

    Args:
        findings: one line each, the most telling first; empty ones are left out.
        most: shown, at least 1.
    """
    found = [line for line in findings if line]
    more = len(found) - most
    return found if more <= 0 else [*found[:most], f"and {more} more of the same kind"]


def told_apart(one: float, other: float) -> tuple[str, str]:
    """Return two numbers with six digits, or as many more as it takes to see that they differ."""
    for digits in range(6, 18):
        texts = f"{one:.{digits}g}", f"{other:.{digits}g}"
        if texts[0] != texts[1]:
            break
    return texts
