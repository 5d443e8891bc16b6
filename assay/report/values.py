"""Recorded values, checked one by one: a file says anything, a page only what makes sense."""

from __future__ import annotations

from typing import Any

from assay.evidence.files import printable

LARGEST = 1e12
"""Nothing that a run measures or counts comes near it; a drawing could not bear much more."""


def text(value: Any) -> str:
    """Return recorded text with the characters that are not seen spelled out: controls, changes of direction."""
    return printable(str(value))


def real(value: Any) -> float:
    """Return a finite number.

    Raises:
        ValueError: it is not a number, or of no plausible size.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")
    number = float(value)
    if not abs(number) <= LARGEST:  # nor is it for NaN
        raise ValueError(f"{value} is not a finite measure")
    return number


def share(value: Any) -> float:
    """Return a probability or a rate; the float32 mean of one may exceed 1 by rounding.

    Raises:
        ValueError: it is outside [0, 1].
    """
    number = real(value)
    if not -1e-6 <= number <= 1 + 1e-6:
        raise ValueError(f"{value} is outside [0, 1]")
    return min(max(number, 0.0), 1.0)


def whole(value: Any) -> int:
    """Return a count.

    Raises:
        ValueError: it is not a whole number, is negative, or of no plausible size.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
        raise ValueError(f"{value!r} is not a count")
    return value
