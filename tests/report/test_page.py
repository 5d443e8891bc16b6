"""The page says what the run's files say, is the same for the same files, and depends on nothing else."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from parsed_page import parse

from assay.report.page import build_page

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> $x^$ \"'&amp;"
SPLITS, POINTS = ("train", "test"), ("init", "warmup", "rl")


def recorded(run: Path, name: str = "results.json") -> Any:
    return json.loads((run / name).read_text())


def change(run: Path, name: str, edit: Callable[[Any], object]) -> None:
    content = recorded(run, name)
    edit(content)
    (run / name).write_text(json.dumps(content))


def as_percent(share: float) -> str:
    text = f"{100 * share:.1f}%"
    return {"0.0%": "<0.1%" if share else text, "100.0%": ">99.9%" if share < 1 else text}.get(text, text)


def test_central_table_is_results_json(sampled_run: Path) -> None:
    rows = parse(build_page(sampled_run)).only("table", class_="central").rows()
    assert len(rows) == len(POINTS)
    for row, point in zip(rows, POINTS, strict=True):
        for cell, split in zip(row[1:], SPLITS, strict=True):
            at = recorded(sampled_run)["points"][point][split]
            sampled = at["sampled"]
            assert cell.split()[0] == as_percent(at["success"])
            assert f"{sampled['successes']:,}/{sampled['trials']:,} sampled" in cell
            assert f"{100 * sampled['low']:.1f}–{100 * sampled['high']:.1f}%" in cell
            assert ("misses" in cell) == (not sampled["low"] <= at["success"] <= sampled["high"])


def test_gains_stay_apart(sampled_run: Path) -> None:
    rows = parse(build_page(sampled_run)).only("table", class_="gains").rows()
    for row, split in zip(rows, SPLITS, strict=True):
        gains = recorded(sampled_run)["gains"][split]
        for cell, phase in zip(row[1:], ("warmup", "rl"), strict=True):
            assert float(cell.replace("−", "-")) == pytest.approx(100 * gains[phase], abs=0.05 + 1e-9)
            assert cell[0] in "+−" or cell == "0.0"


def test_heat_map_shows_every_problem(odd_run: Path) -> None:
    page = parse(build_page(odd_run))
    for figure, split in zip(page.every("figure", class_="heatmap"), SPLITS, strict=True):
        success = [recorded(odd_run)["points"][point][split]["problems"]["success"] for point in POINTS]
        expected = [
            [prompt, *(as_percent(one) for one in cells)]
            for prompt, *cells in zip(recorded(odd_run, "data.json")[split], *success, strict=True)
        ]
        assert [row[:-1] for row in figure.rows()] == expected


def test_every_tensor_is_listed(sampled_run: Path) -> None:
    rows = parse(build_page(sampled_run)).only("table", class_="tensors").rows()
    expected = [
        [
            one["name"],
            " × ".join(map(str, one["shape"])),
            f"{one['max_abs_change']:#.3g}",
            f"{one['last_gradient_norm']:#.3g}",
        ]
        for one in recorded(sampled_run)["tensors"]
    ]
    assert rows == expected and len(rows) == 17


def test_plan_and_spending(sampled_run: Path) -> None:
    page = parse(build_page(sampled_run))
    plan, spent = recorded(sampled_run)["plan"], recorded(sampled_run)["spent"]
    rows = {row[0]: row[1:] for row in page.only("table", class_="budget").rows()}
    for name, key in (
        ("Warm-up steps", "warmup_steps"),
        ("RL steps", "rl_steps"),
        ("Training trajectories", "training_trajectories"),
        ("Evaluation samples, counted apart", "evaluation_samples"),
    ):
        assert rows[name] == [f"{plan[key]:,}", f"{spent[key]:,}"]
    groups = spent["rl_steps"] * 5
    assert rows["Groups without signal"][1] == f"{spent['zero_signal_groups']} of {groups}"
    timing = map(json.loads, (sampled_run / "timing.jsonl").read_text().splitlines())
    seconds = [row["seconds"] for row in timing if "seconds" in row]
    assert f"The steps took {math.fsum(seconds):.2f} s" in page.only("section", id="budget").text
    assert "spent exactly as planned" in page.only("section", id="budget").text


def test_a_broken_plan_shows(copied: Callable[[], Path]) -> None:
    run = copied()
    change(run, "results.json", lambda results: results["spent"].update(training_trajectories=7))
    section = parse(build_page(run)).only("section", id="budget")
    assert "The plan was not kept in: Training trajectories." in section.text
    assert [row.every("td")[1].text for row in section.every("tr", class_="differs")] == ["7"]


def test_resumed_run_says_so(copied: Callable[[], Path]) -> None:
    run = copied()
    with (run / "timing.jsonl").open("a") as timing:
        timing.write('{"event": "resumed", "time": "x"}\n{"phase": "rl", "step": 10, "seconds": 0.5}\n')
    assert "resumed once, 1 step had to be taken again" in build_page(run)


def test_evidence_is_the_manifest(sampled_run: Path) -> None:
    manifest = recorded(sampled_run, "manifest.json")
    digests = recorded(sampled_run)["reference_digests"]
    section = parse(build_page(sampled_run)).only("section", id="evidence")
    rows = dict(section.only("table", class_="digests").rows())
    reference = rows.pop("reference")
    assert rows == {"source code of assay": manifest["source"], **manifest["files"]}
    assert set(digests.values()) == {reference}
    assert f"at {len(digests) - 2} checkpoints on the way" in section.text
    for command in ("sha256sum -c SHA256SUMS", "assay verify DIR", "assay verify DIR --replay"):
        assert command in section.text


def test_changed_reference_is_not_called_frozen(copied: Callable[[], Path]) -> None:
    run = copied()
    change(run, "results.json", lambda results: results["reference_digests"].update(end="0" * 64))
    assert "The reference changed" in parse(build_page(run)).only("section", id="evidence").text


def test_every_setting_is_shown(sampled_run: Path) -> None:
    page = build_page(sampled_run)
    for line in (sampled_run / "config.toml").read_text().splitlines():
        if " = " in line:
            name, value = line.split(" = ")
            assert re.search(rf'scope="row">[a-z.]*{name}</th><td>{re.escape(value.strip(chr(34)))}</td>', page)


def test_same_files_same_page(sampled_run: Path, tmp_path: Path) -> None:
    page = build_page(sampled_run)
    assert build_page(sampled_run) == page
    elsewhere = Path(shutil.copytree(sampled_run, tmp_path / "elsewhere"))
    for later in ("SHA256SUMS", "report.html", "provenance.intoto.json", "checkpoint.pt"):
        (elsewhere / later).unlink(missing_ok=True)
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 30}):
        assert build_page(elsewhere) == page
    assert str(sampled_run.parent) not in page


def test_another_process_builds_the_same_page_without_torch(sampled_run: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from assay.report.page import build_page;"
        "page = build_page(Path(sys.argv[1]));"
        "assert not {'torch', 'scipy', 'matplotlib.pyplot'} & set(sys.modules);"
        "sys.stdout.buffer.write(page.encode())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    built = subprocess.run([sys.executable, "-c", code, sampled_run], env=environment, capture_output=True, check=True)
    assert built.stdout.decode() == build_page(sampled_run)


def test_self_contained(odd_run: Path) -> None:
    html = build_page(odd_run)
    page = parse(html)
    assert not page.every("script") and not page.every("link") and not page.every("img")
    assert re.findall(r"https?:|//|@import|url\((?!#)", html) == []
    names = [name for element in page.walk() for name in element.attributes]
    assert "src" not in names and not any(name.startswith("on") or ":" in name for name in names)
    identifiers = [element.attributes["id"] for element in page.walk() if "id" in element.attributes]
    assert len(identifiers) == len(set(identifiers))
    for element in page.walk():
        if link := element.attributes.get("href"):
            assert link[0] == "#" and link[1:] in identifiers


def test_figures_are_named_and_described(sampled_run: Path) -> None:
    figures = parse(build_page(sampled_run)).every("figure", class_="panel")
    assert len(figures) == 6
    for figure in figures:
        assert figure.only("figcaption").text and figure.only("h3").text
        for svg in figure.every("svg"):
            named = [figure.only(id=name).text for name in (svg.attributes["aria-labelledby"] or "").split()]
            assert svg.attributes["role"] == "img" and named == [figure.only("h3").text, figure.only("figcaption").text]


def test_absent_phases_have_no_curves(odd_run: Path) -> None:
    spent = recorded(odd_run)["spent"]
    page = parse(build_page(odd_run))
    drawn = {figure.attributes["id"] for figure in page.every("figure", class_="panel")}
    assert ("warmup" in drawn) == (spent["warmup_steps"] > 0)
    assert ({"success", "divergence", "return", "gradient", "zero-signal"} <= drawn) == (spent["rl_steps"] > 0)
    text = page.only("section", id="curves").text
    assert ("no curve of RL" in text) == (not spent["rl_steps"])
    assert ("no curve of warm-up" in text) == (not spent["warmup_steps"])


def test_exact_estimator_has_words_of_its_own(exact_run: Path) -> None:
    page = parse(build_page(exact_run))
    assert "exact gradient over all 100 trajectories" in page.only("header").text
    assert "nothing is sampled" in page.only("figure", id="success").text
    assert "computes exactly" in page.only("section", id="meaning").text
    assert "unbiased" not in page.text


def test_hostile_strings_are_text(copied: Callable[[], Path]) -> None:
    run = copied()

    def spoil(record: dict[str, Any]) -> None:
        record.update({key: HOSTILE for key, value in record.items() if isinstance(value, str)})

    change(run, "data.json", lambda data: data.update({s: [HOSTILE for _ in data[s]] for s in SPLITS}))
    change(run, "results.json", lambda results: results["tensors"][0].update(name=HOSTILE, max_abs_change=0.0))
    change(run, "results.json", lambda results: results["reference_digests"].update({HOSTILE: HOSTILE}))
    change(run, "environment.json", lambda environment: (spoil(environment), spoil(environment["packages"])))
    change(run, "manifest.json", lambda manifest: (spoil(manifest), manifest["files"].update({HOSTILE: HOSTILE})))
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace('"rloo"', json.dumps(HOSTILE)))
    page = parse(build_page(run))
    assert not page.every("script") and not page.every("img")
    assert not any(name.startswith("on") for element in page.walk() for name in element.attributes)
    for identifier in ("problems", "tensors", "evidence"):
        assert HOSTILE in page.only("section", id=identifier).text
    assert HOSTILE in page.only("header").text
    assert page.only("table", class_="tensors").rows()[0][0] == HOSTILE
