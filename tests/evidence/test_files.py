"""Files from a stranger: only regular ones are opened, only unambiguous ones are read, and errors name them."""

import os

import pytest

from assay.errors import ConfigError, EvidenceError, RunError
from assay.evidence import files
from assay.evidence.files import entries_of, local, printable, read_json, read_regular, read_rows, read_toml


def refuse(read, path, complaint):
    with pytest.raises(EvidenceError, match=complaint) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")


def device(path):
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # a character device, as /dev/zero
    except PermissionError:
        pytest.skip("needs the right to make a device node")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, device, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_never_opened(tmp_path, make):
    make(tmp_path / "results.json")
    refuse(read_regular, tmp_path / "results.json", "not opened")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(RunError, match=r"gone.json: cannot read \(No such file"):
        read_json(tmp_path / "gone.json")


def test_a_file_too_large_to_be_evidence_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SIZE_LIMIT", 2**20)
    with (tmp_path / "data.json").open("wb") as file:
        file.truncate(2**20 + 1)
    refuse(read_json, tmp_path / "data.json", "larger than 1 MiB")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"", "cannot be parsed"),
        (b"{", "cannot be parsed"),
        (b"{} {}", "cannot be parsed"),
        (b'{"a": "\xff"}', "utf-8"),
        (b'{"a": 1, "a": 2}', "'a' occurs 2 times"),
        (b'{"a": NaN}', "NaN is not a finite number"),
        (b'{"a": -Infinity}', "-Infinity is not a finite number"),
        (b'{"a": 1e999}', "1e999 is not a finite number"),
        (b"[" * 100_000, "recursion"),
        (b'{"a":' * 100_000, "recursion"),
        (b"1" * 5000, "digits"),
    ],
)
def test_json_that_readers_could_take_differently_is_refused(tmp_path, text, complaint):
    (tmp_path / "results.json").write_bytes(text)
    refuse(read_json, tmp_path / "results.json", complaint)


def test_a_hundred_megabytes_of_nested_json_are_refused(tmp_path):
    (tmp_path / "results.json").write_bytes(b"[" * 100_000_000)
    refuse(read_json, tmp_path / "results.json", "recursion")


@pytest.mark.parametrize("text", [b"a = ", b"a = 1\na = 2", b"\xff", b"a = " + b"[" * 100_000])
def test_toml_that_cannot_be_read_is_refused(tmp_path, text):
    (tmp_path / "config.toml").write_bytes(text)
    refuse(read_toml, tmp_path / "config.toml", "cannot be parsed")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"step": 1}\n{"step": 2}', "last line is cut short"),
        ('{"step": 1}\n\n', "line 2 is not JSON"),
        ('{"step": 1}\n[2]\n', "line 2 is not a JSON object"),
        ('{"step": 1}\v{"step": 2}\n', "line 1 is not JSON"),
        ('{"step": 1}\n{"step": 1e999}\n', "line 2 is not JSON"),
    ],
)
def test_rows_are_one_object_a_line(tmp_path, text, complaint):
    (tmp_path / "metrics.jsonl").write_text(text)
    refuse(read_rows, tmp_path / "metrics.jsonl", complaint)


def test_rows_come_back_in_order(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    assert read_rows(tmp_path / "metrics.jsonl") == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize(
    "use",
    [lambda r: r["b"], lambda r: r["a"]["c"], lambda r: r["a"][3], lambda r: r["a"].c, lambda r: 1 / (r["a"][0] - 1)],
)
def test_an_odd_entry_is_an_error_that_names_the_file(use):
    with (
        pytest.raises(EvidenceError, match="^results.json: an entry is missing or of the wrong kind"),
        entries_of("results.json"),
    ):
        use({"a": [1, 2]})


def test_errors_made_on_purpose_pass_unchanged():
    with pytest.raises(ConfigError, match="^seed = -1$"), entries_of("results.json"):
        raise ConfigError("seed = -1")


def test_a_message_names_the_runs_own_files_relative_to_it(tmp_path):
    assert local(RunError(f"{tmp_path}/data.json: missing"), tmp_path) == "data.json: missing"


def test_text_cannot_move_the_cursor_or_pass_for_another_line():
    assert printable("×\nintact: holds\x1b[2J\u202e\udcff") == r"×\nintact: holds\x1b[2J\u202e\udcff"
