"""A changelog that does not say whether numbers changed leaves every reader to find out alone."""

import re
from pathlib import Path


def test_every_entry_says_whether_numbers_changed():
    text = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
    entries = re.split(r"^- ", text, flags=re.MULTILINE)[1:]
    assert entries
    for entry in entries:
        assert re.search(r"^ +numbers: \S", entry, flags=re.MULTILINE), entry
