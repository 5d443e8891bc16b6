"""What part of a gain is format: more answers that can be read, and not better ones.

Success is the share of responses in format times the share right among those. A gain between two points is
split over the two factors, each being moved first and last and the two averaged (Shapley's value):
``F1 A1 - F0 A0 = (F1 - F0) (A0 + A1)/2 + (A1 - A0) (F0 + F1)/2``.
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.core.clustered import clustered_mean
from assay.evaluation.answers import Record, mean
from assay.evaluation.compare import number, paired_difference, paired_rows, shared_bases, signed


def format_share(before: Record, after: Record) -> Record:
    """Return a gain's part from format and its part from accuracy given format; the two add up to the gain.

    Where no response of a point is in format, its accuracy is not known. The parts are then those at the other point's
    accuracy, which makes the whole gain format, and the words say so; the intervals allow for every accuracy.

    Intervals are clustered by problem: a part is replaced by one value a problem, its linear expansion in the problem's
    own shares (the delta method), and these go through :func:`assay.core.clustered.clustered_mean`, whose two added
    problems here are the most that a problem could add. Where few responses of a point are in format, its accuracy is
    hardly known and this gets wide, so that it is cut off at what accuracies from 0 to 1 would give there. In a
    simulation of 10 to 100 problems, with 1% to 95% in format, coverage for 0.95 was at least 0.93.

    Assumptions: problems are a sample of a population. Accuracy is that of the responses that happened to be in format:
    when training brings harder problems into format, accuracy falls though no answer got worse. The split describes;
    it does not show that training format alone would have given that part (a format-only control does).

    Source: Shapley, "A value for n-person games", 1953; for rates, Das Gupta, "Standardization and decomposition of
    rates", 1993.

    Args:
        before: a record of :func:`assay.evaluation.answers.point_record`.
        after: another, of the same problems.

    Returns:
        ``basis``, ``gain``, ``interval``, ``format`` and ``accuracy`` (each ``part`` and ``interval``), ``in_format``
        and ``accuracy_in_format`` (each ``before`` and ``after``; None where not known), and ``words``.

    Raises:
        InputError: the problems or the levels differ, or no kind of answer is in both.
    """
    basis = shared_bases(before, after)[0]
    pairs = paired_rows(before, after, basis)
    points = tuple(_shares([pair[at] for pair in pairs]) for at in (0, 1))
    accuracies = [point.accuracy for point in points]
    first, second = ((own if own is not None else other) or 0.0 for own, other in (accuracies, accuracies[::-1]))
    gain, gain_ends, _ = paired_difference(pairs, before["level"])
    formats = (points[1].format - points[0].format) * (first + second) / 2
    format_ends, accuracy_ends = _intervals(points, before["level"])
    parts = {
        "format": {"part": formats, "interval": format_ends},
        "accuracy": {"part": gain - formats, "interval": accuracy_ends},
    }
    return {
        "basis": basis,
        "gain": gain,
        "interval": gain_ends,
        **parts,
        "in_format": {"before": points[0].format, "after": points[1].format},
        "accuracy_in_format": dict(zip(("before", "after"), accuracies, strict=True)),
        "words": _words(gain, parts, None in accuracies),
    }


_Slopes = tuple[tuple[float, float], ...]
"""How a part moves with a problem's share in format and its share right: a pair for each point."""


@dataclass(frozen=True)
class _Shares:
    """Shares of each problem's responses that are in format, and that are right."""

    formatted: list[float]
    right: list[float]

    @property
    def format(self) -> float:
        return mean(self.formatted)

    @property
    def accuracy(self) -> float | None:
        """Share right among the responses in format, problems weighed equally; None where none is in format."""
        return mean(self.right) / self.format if any(self.formatted) else None


def _shares(rows: list[Record]) -> _Shares:
    return _Shares([row["in_format"] / row["of"] for row in rows], [row["right"] / row["of"] for row in rows])


def _intervals(points: tuple[_Shares, ...], level: float) -> list[list[float]]:
    """Return the intervals of the format part and of the accuracy part."""
    gain: _Slopes = ((0.0, -1.0), (0.0, 1.0))
    known = [point.accuracy for point in points]
    weak = 0 if points[0].format < points[1].format else 1
    ways = [_format_slopes(points, [rate if at == weak else None for at in (0, 1)]) for rate in (0.0, 1.0)]
    free = None if None in known else _format_slopes(points, [None, None])
    made = []
    for slopes_of in (lambda slopes: slopes, lambda slopes: _minus(gain, slopes)):
        limits = [_interval(slopes_of(way), points, level) for way in ways]
        low, high = min(low for low, _ in limits), max(high for _, high in limits)
        own = [low, high] if free is None else _interval(slopes_of(free), points, level)
        made.append([max(low, own[0]), min(high, own[1])])
    return made


def _format_slopes(points: tuple[_Shares, ...], fixed: list[float | None]) -> _Slopes:
    """Return the derivatives of the format part, ``(F1 - F0) (A0 + A1) / 2``, in each share in format and right.

    An accuracy is ``S / F``, or a fixed number. Either way doubling all shares doubles the part, so that it is the sum
    of the shares, each times its slope (Euler), without a constant.
    """
    rates = [point.accuracy or 0.0 if rate is None else rate for point, rate in zip(points, fixed, strict=True)]
    rise, level = points[1].format - points[0].format, sum(rates) / 2
    slopes = []
    for sign, point, rate, given in zip((-1, 1), points, rates, fixed, strict=True):
        by_right = rise / (2 * point.format) if given is None and point.format else 0.0
        slopes.append((sign * level - by_right * rate, by_right))
    return tuple(slopes)


def _minus(whole: _Slopes, part: _Slopes) -> _Slopes:
    return tuple((a - c, b - d) for (a, b), (c, d) in zip(whole, part, strict=True))


def _interval(slopes: _Slopes, points: tuple[_Shares, ...], level: float) -> list[float]:
    """Return the interval of a part; the range is what one problem can add, its right responses being in format."""
    values = [0.0] * len(points[0].right)
    low = high = 0.0
    for (by_format, by_right), point in zip(slopes, points, strict=True):
        corners = (0.0, by_format, by_format + by_right)
        low, high = low + min(corners), high + max(corners)
        for at, (formatted, right) in enumerate(zip(point.formatted, point.right, strict=True)):
            values[at] += by_format * formatted + by_right * right
    ends = clustered_mean(values, low=min(low, -1.0), high=max(high, 1.0), level=level)
    return [min(1.0, max(-1.0, end)) for end in ends]


def _words(gain: float, parts: Record, assumed: bool) -> str:
    formats, accuracy = parts["format"]["part"], parts["accuracy"]["part"]
    words = (
        f"of the gain {signed(gain)}, {signed(formats)} is format ({_ends(parts['format'])}), "
        f"{signed(accuracy)} accuracy ({_ends(parts['accuracy'])})"
    )
    return f"{words}; one point had nothing in format, and is taken to have the other's accuracy" if assumed else words


def _ends(part: Record) -> str:
    low, high = part["interval"]
    return f"{number(low)} to {number(high)}"
