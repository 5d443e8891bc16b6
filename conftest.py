"""Every Python snippet of the README and of docs/ is run: one test a page, in order, in a directory of its own.

A page is one test and not one a snippet, because later snippets use what earlier ones made, and pytest-xdist may hand
neighbouring tests to different processes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.myst import PythonCodeBlockParser

ROOT = Path(__file__).parent
SYBIL = Sybil(parsers=[PythonCodeBlockParser()], path=str(ROOT), pattern="*.md")


class Snippets(pytest.Item):
    """The Python snippets of one page, run from an empty temporary directory, on one thread."""

    def runtest(self) -> None:
        import torch

        directory = self.config._tmp_path_factory.mktemp(self.path.stem)  # type: ignore[attr-defined]
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as the plan fixes; contending threads make tiny tensors many times slower
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(directory)
                patch.setattr(sys, "path", [str(ROOT), *sys.path])
                for example in SYBIL.parse(self.path).examples():
                    example.evaluate()
        finally:
            torch.set_num_threads(threads)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"snippets of {self.path.name}"


class Page(pytest.File):
    """A page: its snippets are one test, and a page without snippets has none."""

    def collect(self) -> list[Snippets]:
        return [Snippets.from_parent(self, name="snippets")] if list(SYBIL.parse(self.path).examples()) else []


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Page | None:
    """Collect the README and the pages of docs/."""
    if file_path == ROOT / "README.md" or (file_path.suffix == ".md" and file_path.parent == ROOT / "docs"):
        return Page.from_parent(parent, path=file_path)
    return None
