"""Take the README's picture: the top of a run's report, as Chromium draws it.

.venv/bin/python docs/picture.py my-run/report.html
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

TARGET = Path(__file__).parent / "images" / "report.png"
WIDTH, HEIGHT = 1180, 1020


def main(report: Path) -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("Chromium is not installed; it draws the picture")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(report.resolve().as_uri())
        page.screenshot(path=TARGET)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
