"""Write numbers as text, one way each."""

from __future__ import annotations

MINUS = "\N{MINUS SIGN}"
DASH = "\N{EN DASH}"


def percent(share: float) -> str:
    """Return a share as a percentage with one decimal; what rounds to nothing or to everything says so."""
    text = f"{100 * share:.1f}%"
    if share > 0 and text == "0.0%":
        return "<0.1%"
    if share < 1 and text == "100.0%":
        return ">99.9%"
    return text


def percent_range(low: float, high: float) -> str:
    """Return an interval of shares as percentages."""
    return f"{100 * low:.1f}{DASH}{100 * high:.1f}%"


def points(difference: float) -> str:
    """Return a difference of two shares in percentage points, with its sign."""
    text = f"{100 * difference:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", MINUS)


def significant(value: float, digits: int = 3) -> str:
    """Return a number to some significant digits."""
    return f"{value:.{digits}g}".replace("-", MINUS)


def measured(value: float) -> str:
    """Return a magnitude to three significant digits, zeros at the end kept."""
    return f"{value:#.3g}"


def decimals(value: float, places: int = 3) -> str:
    """Return a number to some decimals, so that a column lines up."""
    return f"{value:.{places}f}".replace("-", MINUS)


def seconds(duration: float) -> str:
    """Return a duration in seconds."""
    return f"{duration:,.0f} s" if duration >= 100 else f"{duration:.2f} s"


def count(number: int) -> str:
    """Return a whole number with thousands set apart."""
    return f"{number:,}"


def count_range(pair: tuple[int, int]) -> str:
    """Return fewest and most, or the one number where they agree."""
    low, high = pair
    return count(low) if low == high else f"{count(low)}{DASH}{count(high)}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun; the plural is the noun with an s unless it is given."""
    return f"{count(number)} {noun if number == 1 else plural or noun + 's'}"


def listed(words: list[str]) -> str:
    """Join words as a sentence does: ``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
