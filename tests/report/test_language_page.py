"""The report of a language run: every number is a recorded one, a model's text is text, and damage is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from parsed_page import Element, parse
from runs.tiny_language_run import furnish, recipe

from assay.errors import EvidenceError
from assay.report.language.page import build_language_page
from assay.report.notation import percent
from assay.runs.language.train import train_language

HOSTILE = "<script>alert(1)</script>\u202eabc\x1b[31m<img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run with controls and bounds."""
    place = furnish(tmp_path_factory.mktemp("page"))
    wanted = {"controls": ["random_reward"], "bounds": 2}
    return train_language(recipe(place, evaluation=wanted), place / "run").directory


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    """Return a copy of the run that a test may damage."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def page(run: Path) -> Element:
    return parse(build_language_page(run))


def change(run: Path, name: str, edit: Callable[[Any], object]) -> None:
    content = json.loads((run / name).read_text())
    edit(content)
    (run / name).write_text(json.dumps(content))


def table(document: Element, caption: str) -> list[list[str]]:
    (found,) = [one for one in document.every("table") if one.only("caption").text.startswith(caption)]
    return found.rows()


def test_every_rate_is_the_recorded_one(trained: Path):
    results, document = json.loads((trained / "results.json").read_text()), page(trained)
    for caption, split in (("Test problems", "test"), ("Training problems", "train")):
        rows = table(document, caption)
        for row, point in zip(rows, ("base", "warmup", "rl"), strict=False):
            record = results["points"][point][split]
            assert row[1].startswith(percent(record["sampled"]["rate"]))
            assert row[2].startswith(percent(record["greedy"]["rate"]))
            assert [int(cell) for cell in row[4:9]] == list(record["sampled"]["outcomes"].values())
    control = results["controls"]["random_reward"]["test"]
    assert table(document, "Test problems")[3][1].startswith(percent(control["sampled"]["rate"]))


def test_the_sentences_are_those_of_the_comparisons(trained: Path):
    results, text = json.loads((trained / "results.json").read_text()), page(trained).text
    for made in results["gains"]["test"].values():
        assert " ".join(made["words"].split()) in text
    assert results["format"]["words"] in text and results["plan"]["estimand"] in text
    groups = results["signal"]["groups"]
    assert f"{groups['informative']} of {sum(groups.values())} groups had two different rewards" in text


def test_the_page_depends_on_the_files_alone(trained: Path, copy: Path):
    assert build_language_page(trained) == build_language_page(copy) == (trained / "report.html").read_text()


def test_nothing_in_the_page_runs_or_is_fetched(trained: Path):
    document = page(trained)
    assert not document.every("script") and not document.every("img") and not document.every("link")
    assert all((one.attributes.get("href") or "#").startswith("#") for one in document.every("a"))


def test_what_a_model_wrote_is_shown_as_text(copy: Path):
    lines = [json.loads(line) for line in (copy / "samples.jsonl").read_text().splitlines()]
    (copy / "samples.jsonl").write_text("".join(json.dumps({**line, "text": HOSTILE}) + "\n" for line in lines))
    document = page(copy)
    assert not document.every("script") and not document.every("img")
    said = document.only("table", class_="said").text
    assert "<script>alert(1)</script>" in said and "\\u202eabc" in said and "\\x1b[31m" in said


def test_a_run_without_warm_up_or_rl_speaks_of_neither(trained: Path, tmp_path: Path):
    place = trained.parent
    without = {"warmup": {"steps": 0}, "rl": {"steps": 0}, "evaluation": {"every": 0}}
    run = train_language(recipe(place, **without), tmp_path / "run").directory
    text = page(run).text
    assert "After RL" not in text and "After warm-up" not in text and "There was no RL" in text
    warmed = train_language(recipe(place, rl={"steps": 0}, evaluation={"every": 0}), tmp_path / "warmed").directory
    assert "After warm-up" in page(warmed).text and "After RL" not in page(warmed).text


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("results.json", lambda results: results["points"]["rl"]["test"]["sampled"].update(rate=1.5)),
        ("results.json", lambda results: results["points"]["rl"]["test"]["sampled"].pop("interval")),
        ("results.json", lambda results: results.pop("signal")),
        ("data.json", lambda data: data["splits"].pop("test")),
        ("environment.json", None),
    ],
)
def test_an_odd_entry_is_an_error_that_names_its_file(copy: Path, name: str, edit: Callable[[Any], object] | None):
    if edit is None:
        (copy / name).write_text("[]")
    else:
        change(copy, name, edit)
    with pytest.raises(EvidenceError, match=name):
        build_language_page(copy)


def test_a_damaged_history_is_an_error_that_names_it(copy: Path):
    rows = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    del rows[-1]["reward"]
    (copy / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(EvidenceError, match="metrics.jsonl"):
        build_language_page(copy)
