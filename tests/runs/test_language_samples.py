"""What a model wrote is stored as it is and never interpreted, whatever it holds."""

import json
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import EvidenceError
from assay.runs.directory import Journal
from assay.runs.language.samples import Sample, append_sample, read_samples, valid_text

ODD = ["", "\n", "\r\n", "\x00\x1b[2J", "\u2028\x85\x0b", '"}\n{"point": "rl"', "</script><b>", "\U0001f600", "\ufeff×"]


def sample(text, **other):
    values = {"status": "wrong", "score": 0.0, "truncated": False, "in_format": True, **other}
    return Sample("rl", "test", 3, 0, text, **values)


def written(tmp_path, samples):
    path = tmp_path / "samples.jsonl"
    with closing(Journal(path, keep=0)) as journal:
        for one in samples:
            append_sample(journal, one)
    return path


def test_odd_text_comes_back_as_it_was_one_line_a_response(tmp_path):
    samples = [sample(text) for text in ODD]
    path = written(tmp_path, samples)
    assert list(read_samples(path)) == samples
    assert path.read_bytes().count(b"\n") == len(samples)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\ud83d\ude00", "\U0001f600"),
        ("a\ud83d", "a\ufffd"),
        ("\ude00b", "\ufffdb"),
        ("\ud83db", "\ufffdb"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ufeff", "\ufeff"),
    ],
)
def test_halves_of_characters_are_joined_or_replaced(tmp_path, text, expected):
    assert valid_text(text) == expected
    [read] = read_samples(written(tmp_path, [sample(text)]))
    assert read.text == expected


@given(st.text(st.characters(codec=None)))
def test_any_text_can_be_stored_and_good_text_is_not_changed(text):
    kept = valid_text(text)
    kept.encode()
    if not any(0xD800 <= ord(character) < 0xE000 for character in text):
        assert kept == text


def test_every_kind_of_outcome_comes_back(tmp_path):
    samples = [
        sample("a", status="right", score=1.0),
        sample("b", status="timeout", score=None, truncated=True, in_format=False),
        Sample("base", "train", 0, None, "greedy", "unparseable", None, False, False),
        sample("c", score=1),
    ]
    assert list(read_samples(written(tmp_path, samples))) == samples


def test_a_score_that_is_no_number_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        written(tmp_path, [sample("a", score=float("nan"))])


@pytest.mark.parametrize(
    "change", [{"status": "great"}, {"truncated": 0}, {"text": 1}, {"more": 1}, {"problem": True}, {"sample": 0.0}]
)
def test_a_line_that_is_no_response_is_named(tmp_path, change):
    path = written(tmp_path, [sample("a"), sample("b")])
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{json.dumps({**json.loads(second), **change})}\n")
    with pytest.raises(EvidenceError, match=r"samples.jsonl: line 2: "):
        list(read_samples(path))


def test_lines_are_read_one_at_a_time_and_their_length_is_bounded(tmp_path, monkeypatch):
    path = written(tmp_path, [sample("a"), sample("b" * 500)])
    monkeypatch.setattr("assay.evidence.files.LINE_LIMIT", 400)
    rows = read_samples(path)
    assert next(rows).text == "a"
    with pytest.raises(EvidenceError, match="line 2 is longer than"):
        next(rows)


def test_a_line_cut_short_is_named(tmp_path):
    path = written(tmp_path, [sample("a")])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(EvidenceError, match="line 1 is cut short"):
        list(read_samples(path))
