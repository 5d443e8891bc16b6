"""The page in a real browser: offline, without scripts, light and dark, on a telephone and on a desk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from language_directory import build_language_directory

from assay.report.language.page import build_language_page
from assay.report.page import build_page

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install playwright")
Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install pillow")

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
]
WIDTHS, SCHEMES = (400, 1280), ("light", "dark")


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="module", params=["sampled_run", "exact_run", "language_run"])
def page_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    if request.param == "language_run":
        page = build_language_page(build_language_directory(file.parent / "run"))
    else:
        page = build_page(request.getfixturevalue(request.param))
    file.write_text(page, encoding="utf-8")
    return file


@pytest.fixture(params=[(width, scheme) for width in WIDTHS for scheme in SCHEMES], ids=lambda at: f"{at[0]}-{at[1]}")
def view(request: pytest.FixtureRequest) -> dict[str, object]:
    width, scheme = request.param
    return {"viewport": {"width": width, "height": 900}, "color_scheme": scheme, "offline": True}


def luminance(colour: str) -> float:
    """Return the WCAG relative luminance of ``rgb(r, g, b)``."""
    channels = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Return the WCAG contrast ratio of two colours, from 1 to 21."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_readable_without_scripts_or_network(
    browser: sync_api.Browser, page_file: Path, view: dict[str, object], tmp_path: Path
) -> None:
    with browser.new_context(**view, java_script_enabled=False) as context:
        page = context.new_page()
        requests: list[str] = []
        complaints: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(page_file.as_uri())
        assert requests == [page_file.as_uri()] and complaints == []
        figures = page.locator("figure svg")
        assert figures.count() >= 5
        for number in range(figures.count()):
            box = figures.nth(number).bounding_box()
            assert box and box["width"] > 250 and box["height"] > 120
        shot = tmp_path / "page.png"
        page.screenshot(path=shot, full_page=True)
    with Image.open(shot) as image:
        colours = image.convert("RGB").getcolors(maxcolors=2**24)
    assert len(colours) > 50 and max(count for count, _ in colours) < 0.99 * sum(count for count, _ in colours)


MEASURE = """() => ({
  overflow: document.documentElement.scrollWidth - window.innerWidth,
  wide: [...document.querySelectorAll("section, h1, h2, p, figure, svg, dl, .central, .gains, .budget, .digests")]
    .filter(e => e.getBoundingClientRect().right > window.innerWidth + 1).map(e => e.tagName + "." + e.className),
  page: getComputedStyle(document.body).backgroundColor,
  texts: [...document.querySelectorAll("h1, p, td, th, dt, dd, li, figcaption, a, caption, summary")]
    .filter(e => !e.closest(".heat")).map(e => getComputedStyle(e).color),
  drawn: [...document.querySelectorAll("svg text")].map(e => getComputedStyle(e).fill),
  sizes: [...document.querySelectorAll("svg text")].map(e => e.getBoundingClientRect().height),
  outside: [...document.querySelectorAll("svg text")].filter(e => {
    const a = e.getBoundingClientRect(), b = e.ownerSVGElement.getBoundingClientRect();
    return a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1;
  }).map(e => e.textContent),
})"""


def test_fits_and_is_legible(browser: sync_api.Browser, page_file: Path, view: dict[str, object]) -> None:
    with browser.new_context(**view) as context:
        page = context.new_page()
        page.goto(page_file.as_uri())
        for summary in page.locator("details > summary").all():
            summary.click()
        measured = page.evaluate(MEASURE)
    assert measured["overflow"] <= 0 and measured["wide"] == [] and measured["outside"] == []
    assert min(measured["sizes"]) >= 9
    for colour in {*measured["texts"], *measured["drawn"]}:
        assert contrast(colour, measured["page"]) >= 4.5, f"{colour} on {measured['page']}"
    assert (luminance(measured["page"]) < 0.1) == (view["color_scheme"] == "dark")


HEAT = """() => [...document.querySelectorAll(".heat")].map(e => {
  const style = getComputedStyle(e);
  return [style.backgroundColor, style.color];
})"""


def test_heat_map_is_legible(browser: sync_api.Browser, page_file: Path, view: dict[str, object]) -> None:
    with browser.new_context(**view) as context:
        page = context.new_page()
        page.goto(page_file.as_uri())
        page.add_style_tag(content=".heat { --p: 1 !important; }")
        ground = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        cells = page.evaluate(HEAT)
    over = [float(part) for part in ground.removeprefix("rgb(").removesuffix(")").split(",")]
    for fill, ink in {tuple(cell) for cell in cells}:
        red, green, blue, alpha = (float(part) for part in fill.removeprefix("rgba(").removesuffix(")").split(","))
        mixed = [round(alpha * c + (1 - alpha) * g) for c, g in zip((red, green, blue), over, strict=True)]
        assert contrast(f"rgb({mixed[0]}, {mixed[1]}, {mixed[2]})", ink) >= 4.5
