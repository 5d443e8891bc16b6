"""One look for every curve: where the axes lie, how ticks and grid are drawn, and the SVG that comes out.

No text that a run recorded is drawn here; problems and names are set by the template, which escapes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from assay.report.notation import MINUS
from assay.report.svg import COLOUR, inline_svg

WIDTH, HEIGHT = 440, 255
"""Of a panel in SVG units; 12 of them are the size of its text, readable on a telephone and on a wide screen."""
FONT_SIZE = 12
MUTED, RULE = COLOUR["muted"], COLOUR["rule"]
MARKED = 30
"""A curve of at most so many points shows each of them; one point alone would otherwise be invisible."""
ROUND = (1, 2, 5, 10)
"""Ticks lie at round multiples."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": FONT_SIZE,
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": MUTED,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 1.0,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "xtick.major.pad": 7,
    "ytick.major.pad": 6,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
}


@contextmanager
def house_style() -> Iterator[None]:
    """Draw as the page does, whatever the reader's own matplotlib settings are."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def panel(*, unit: str, over: str, last: int) -> Axes:
    """Return empty axes.

    Args:
        unit: of the values, set above them, where it needs no turning.
        over: what the horizontal axis counts.
        last: largest count on it.
    """
    figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72))
    axes = figure.add_axes((46 / WIDTH, 46 / HEIGHT, (WIDTH - 46 - 14) / WIDTH, (HEIGHT - 46 - 34) / HEIGHT))
    figure.text(0, (HEIGHT - 14) / HEIGHT, unit, color=MUTED)
    figure.text((WIDTH - 14) / WIDTH, 8 / HEIGHT, over, color=MUTED, ha="right")
    axes.set_xlim(-0.02 * last, 1.02 * last)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1, steps=ROUND))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=ROUND))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("-", MINUS)))
    return axes


def curve(axes: Axes, x: Sequence[int], y: Sequence[float], role: str, *, dashes: bool = False) -> None:
    """Draw values that belong to one another."""
    marker = ("s" if dashes else "o") if len(x) <= MARKED else None
    axes.plot(x, y, color=COLOUR[role], linestyle=(0, (5, 2.5)) if dashes else "-", marker=marker, markersize=4.5)


def dots(axes: Axes, x: Sequence[int], y: Sequence[float]) -> None:
    """Draw one value a step, which no line should join: each is about other problems than the one before."""
    axes.plot(x, y, color=COLOUR["step"], linestyle="none", marker="o", markersize=4, markeredgewidth=0)


def bars(axes: Axes, x: Sequence[int], heights: Sequence[int]) -> None:
    """Draw one bar a step, all of them as one outline; in a short run they stay slim."""
    half = min(0.4, 0.015 * max(x))
    edges = [edge for at in x for edge in (at - half, at + half)]
    values = [value for height in heights for value in (height, 0)][:-1]
    axes.stairs(values, edges, fill=True, color=COLOUR["pass"], linewidth=0)


def share_axis(axes: Axes) -> None:
    """Let the values be shares, from nothing to all."""
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f}%"))


def count_axis(axes: Axes, most: int) -> None:
    """Let the values be whole numbers up to ``most``."""
    axes.set_ylim(0, most * 1.02)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=ROUND))


def log_axis(axes: Axes, values: Sequence[float]) -> None:
    """Let the values, all positive, be read by their ratios, with a label at 1, 2 and 5 of each decade."""
    axes.set_yscale("log")
    axes.set_ylim(min(values) / 1.6, max(values) * 1.6)
    wide = max(values) > 100 * min(values)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def level(axes: Axes, value: float) -> None:
    """Draw a value that the curves are to be seen against."""
    axes.axhline(value, color=MUTED, linewidth=1.2, linestyle=(0, (1, 2.5)))


def finished(axes: Axes, *, key: str, title: str, description: str) -> str:
    """Return the drawing as inline SVG; its identifiers depend on what it shows and on ``key`` alone."""
    matplotlib.rcParams["svg.hashsalt"] = key
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    return inline_svg(figure, key=key, title=title, description=description)
