"""The data of a run as files: every problem comes back as it was, and other tools read what describes them."""

import hashlib
import json

import pytest

from assay.errors import ConfigError, EvidenceError
from assay.evidence.language.data import check_data, describe_rows
from assay.runs.language.data import read_problems, rows_text, write_data
from assay.runs.language.layout import Layout
from assay.types import TextProblem

CHAT = ({"role": "system", "content": "be brief"}, {"role": "user", "content": "1+1?\u2028"})
SPLITS = {
    "train": [
        TextProblem(
            0, "1+1=", "2", {"level": 1, "exact": True, "ratio": 0.5, "nested": {"a": [1, "x"]}, "odd name": 1}
        ),
        TextProblem(1, "×\n", None, {"level": None, "exact": False, "ratio": 1.5, "mixed": 1}),
        TextProblem(5, "1+1=", "2", {"level": 3, "mixed": "x"}),
    ],
    "test": [TextProblem(7, CHAT, "2"), TextProblem(8, CHAT, "3"), TextProblem(9, CHAT[1:], "2", {"level": "hard"})],
}


@pytest.fixture
def layout(tmp_path):
    write_data(Layout(tmp_path), SPLITS, {"source": "gym:sums", "overlap": {"normalised": 3}})
    return Layout(tmp_path)


def fields(layout, split):
    [records] = [
        records for records in json.loads(layout.croissant.read_text())["recordSet"] if records["name"] == split
    ]
    return {field["name"]: field for field in records["field"]}


@pytest.mark.parametrize("split", SPLITS)
def test_problems_come_back_as_they_were(layout, split):
    assert read_problems(layout.rows(split)) == SPLITS[split]


def test_what_is_recorded_is_counted_from_the_files(layout):
    recorded = json.loads(layout.data.read_text())
    assert recorded["source"] == "gym:sums"
    assert recorded["overlap"] == {"normalised": 3, "prompts": 0}
    assert recorded["splits"] == {
        split: {
            "file": f"data/{split}.jsonl",
            "rows": 3,
            "sha256": hashlib.sha256(layout.rows(split).read_bytes()).hexdigest(),
            "duplicates": 1,
        }
        for split in SPLITS
    }
    assert check_data(layout.root) == []


def test_a_prompt_on_both_sides_is_counted(tmp_path):
    both = {"train": SPLITS["train"], "test": [*SPLITS["test"], TextProblem(10, "1+1=", "another answer")]}
    write_data(Layout(tmp_path), both, {})
    assert describe_rows(tmp_path)["overlap"] == {"prompts": 1}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object()])
def test_a_value_that_json_lacks_is_refused_by_the_row(value):
    with pytest.raises(ConfigError, match="problem 3: a column cannot be written as JSON .*; drop it"):
        rows_text([TextProblem(3, "x", None, {"odd": value})])


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": 1},
        {"prompt": [{"role": "user"}]},
        {"prompt": ["x"]},
        {"answer": 2},
        {"columns": []},
        {"number": None},
    ],
)
def test_a_row_that_is_no_problem_is_refused(layout, change):
    path = layout.rows("train")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(f"{json.dumps({**row, **change})}\n" for row in rows))
    try:
        findings = check_data(layout.root)
    except EvidenceError as error:
        findings = [str(error)]
    assert any("train.jsonl" in finding for finding in findings)


def test_the_description_gives_each_file_its_digest(layout):
    description = json.loads(layout.croissant.read_text())
    assert description["conformsTo"] == "http://mlcommons.org/croissant/1.0"
    assert "license" not in description and "datePublished" not in description, "what is not known is not made up"
    assert {file["@id"]: file["sha256"] for file in description["distribution"]} == {
        f"{split}.jsonl": hashlib.sha256(layout.rows(split).read_bytes()).hexdigest() for split in SPLITS
    }
    files = {file["@id"] for file in description["distribution"]}
    for split in SPLITS:
        assert {field["source"]["fileObject"]["@id"] for field in fields(layout, split).values()} == {f"{split}.jsonl"}
    assert files == {"train.jsonl", "test.jsonl"}


def test_the_description_types_what_has_one_type(layout):
    types = {name: field["dataType"] for name, field in fields(layout, "train").items()}
    assert types == {
        "number": "sc:Integer",
        "prompt": "sc:Text",
        "answer": "sc:Text",
        "columns.level": "sc:Integer",
        "columns.exact": "sc:Boolean",
        "columns.ratio": "sc:Float",
    }
    chat = fields(layout, "test")
    assert {name for name, field in chat.items() if field["repeated"]} == {"prompt.role", "prompt.content"}
    assert chat["prompt.content"]["source"]["transform"] == {"jsonPath": "$.content"}


def test_mlcroissant_reads_the_problems(layout):
    mlcroissant = pytest.importorskip("mlcroissant", reason="needs mlcroissant")
    dataset = mlcroissant.Dataset(jsonld=str(layout.croissant))
    read = list(dataset.records("test"))
    assert [record["test/number"] for record in read] == [7, 8, 9]
    assert [record["test/prompt.content"][-1].decode() for record in read] == ["1+1?\u2028"] * 3


def test_datasets_reads_the_problems(layout, tmp_path):
    datasets = pytest.importorskip("datasets", reason="needs datasets")
    for split, problems in SPLITS.items():
        rows = datasets.load_dataset("json", data_files=str(layout.rows(split)), cache_dir=str(tmp_path / "c"))["train"]
        assert rows["number"][:] == [problem.number for problem in problems]
