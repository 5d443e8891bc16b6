"""The curves are the recorded numbers."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from assay.report import axes as draw
from assay.report.notation import listed, percent, points
from assay.report.plots import draw_charts, pass_means
from assay.report.read import read_run
from assay.report.record import Run
from assay.report.svg import COLOUR, inline_svg


@pytest.fixture
def run(sampled_run: Path) -> Run:
    return read_run(sampled_run)


def drawn_line(svg: str, role: str) -> np.ndarray:
    """Return the corners of the one polyline stroked in this colour, (N, 2) in SVG units."""
    paths = [path for path in ElementTree.fromstring(svg).iter("path") if "id" not in path.attrib]
    (line,) = (path.attrib["d"] for path in paths if f"stroke: var(--{role})" in path.attrib["style"])
    return np.array([[float(number) for number in pair.split()] for pair in re.split("[ML]", line)[1:]])


def assert_affine(drawn: np.ndarray, values: list[float]) -> None:
    """Check that drawn coordinates are the values up to one scale and one shift."""
    scale, shift = np.polyfit(values, drawn, 1)
    assert np.abs(scale * np.array(values) + shift - drawn).max() < 1e-3


def test_exact_success_is_drawn_as_recorded(run: Run) -> None:
    (chart,) = (one for one in draw_charts(run) if one.key == "success")
    assert chart.svg is not None
    for split in ("train", "test"):
        recorded = [(0, run.results.points["warmup"][split].success)]
        recorded += [(step.step, step.exact.success[split]) for step in run.rl if step.exact]
        line = drawn_line(chart.svg, split)
        assert_affine(line[:, 0], [float(at) for at, _ in recorded])
        assert_affine(line[:, 1], [value for _, value in recorded])


@pytest.mark.parametrize(("key", "name"), [("divergence", "log_ratio"), ("return", "shaped_return")])
def test_pass_means_are_drawn_as_recorded(run: Run, key: str, name: str) -> None:
    (chart,) = (one for one in draw_charts(run) if one.key == key)
    assert chart.svg is not None
    values = [getattr(step, name) for step in run.rl]
    windows = [float(np.mean(values[i - run.cycle : i])) for i in range(run.cycle, len(values) + 1)]
    assert_affine(drawn_line(chart.svg, "pass")[:, 1], windows)


def test_pass_mean_sees_each_problem_once() -> None:
    values = [0.0, 1.0, 5.0, 2.0, 0.0, 1.0, 5.0]
    assert pass_means(values, 4) == pytest.approx([2.0] * 4)
    assert pass_means(values, 8) == []


def test_colours_follow_the_page(run: Run) -> None:
    for chart in draw_charts(run):
        assert chart.svg is None or ("var(--" in chart.svg and not re.search("#[0-9a-f]{6}", chart.svg))
        assert chart.svg is None or ("font-family" not in chart.svg and "<style" not in chart.svg)


def test_svg_text_is_escaped_and_no_mathematics() -> None:
    hostile = "<script>alert(1)</script> $x^$"
    with draw.house_style():
        figure = Figure()
        figure.text(0.5, 0.5, hostile, color=COLOUR["muted"])
        svg = inline_svg(figure, key="hostile", title=hostile, description=hostile)
    assert "<script" not in svg
    root = ElementTree.fromstring(svg)
    assert [element.text for element in root.iter() if element.tag in ("title", "desc", "text")] == [hostile] * 3


def test_style_is_left_as_it_was() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    with draw.house_style():
        assert dict(matplotlib.rcParams) != before
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0.0%"), (1e-9, "<0.1%"), (0.4687, "46.9%"), (0.9999, ">99.9%"), (1.0, "100.0%")]
)
def test_percent_does_not_round_to_certainty(share: float, text: str) -> None:
    assert percent(share) == text


def test_points_and_lists() -> None:
    assert [points(gain) for gain in (0.198, -0.05, 0.0, -0.0001)] == ["+19.8", "−5.0", "0.0", "0.0"]
    assert [listed(words) for words in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
