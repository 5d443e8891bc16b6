"""The run directory on a real file system: made once, held by one, written whole or not at all."""

import errno
import json
import os
from pathlib import Path

import pytest

from assay.errors import RunError
from assay.runs.directory import Journal, create, held, named_errors, removed_on_failure, to_json, write, write_new


def no_space(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_json_has_one_form_and_no_number_that_json_lacks():
    assert to_json({"b": [1], "a": "×"}) == '{\n "b": [\n  1\n ],\n "a": "×"\n}\n'.encode()
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"a": float("nan")})


def test_a_file_is_replaced_whole(tmp_path):
    write(tmp_path / "file", b"old")
    write(tmp_path / "file", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"new"}


@pytest.mark.parametrize(("owner", "name"), [(os, "fsync"), (Path, "replace"), (Path, "open")])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, owner, name):
    write(tmp_path / "checkpoint.pt", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, no_space)
        with pytest.raises(RunError, match="checkpoint.pt: No space left on device; free some space"):
            write(tmp_path / "checkpoint.pt", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"checkpoint.pt": b"old"}


def test_a_file_is_on_the_disk_before_it_takes_its_name(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (done.append("flush"), fsync(descriptor)))
    monkeypatch.setattr(Path, "replace", lambda path, target: (done.append("rename"), replace(path, target)))
    write(tmp_path / "file", b"new")
    assert done == ["flush", "rename", "flush"]  # the last one is the directory's


def test_a_new_file_is_never_written_over(tmp_path):
    write_new(tmp_path / "a" / "b", b"first")
    (tmp_path / "link").symlink_to("nowhere")
    for taken in (tmp_path / "a" / "b", tmp_path / "link"):
        with pytest.raises(RunError, match="exists already with another content and is not overwritten"):
            write_new(taken, b"second")
    assert (tmp_path / "a" / "b").read_bytes() == b"first"
    assert not (tmp_path / "nowhere").exists()


def test_a_file_with_the_same_content_may_be_asked_for_again(tmp_path):
    write_new(tmp_path / "a", b"same")
    before = (tmp_path / "a").stat()
    write_new(tmp_path / "a", b"same")
    assert (tmp_path / "a").stat().st_ino == before.st_ino


def test_a_directory_is_made_with_its_parents_and_only_once(tmp_path):
    create(tmp_path / "a" / "b")
    with pytest.raises(RunError, match="exists already; a run is never overwritten"):
        create(tmp_path / "a" / "b")


@pytest.mark.parametrize("name", ["file/run", "file/inner/run"])
def test_a_place_below_a_file_is_refused_for_what_it_is(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="part of the path is a file; choose another place"):
        create(tmp_path / name)


def test_a_name_too_long_is_refused_for_what_it_is(tmp_path):
    with pytest.raises(RunError, match="File name too long; choose a shorter name"):
        create(tmp_path / ("x" * 300))


def test_a_failed_start_leaves_nothing(tmp_path):
    create(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt), removed_on_failure(tmp_path / "run"):
        write(tmp_path / "run" / "config.toml", b"")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_held_by_one_at_a_time(tmp_path):
    with held(tmp_path):
        with pytest.raises(RunError, match="another process is working on this run"), held(tmp_path):
            pass
    with held(tmp_path):
        pass


def test_what_does_not_exist_cannot_be_held(tmp_path):
    with pytest.raises(RunError, match="gone: no such run directory; check the path"), held(tmp_path / "gone"):
        pass


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EROFS, "the file system is read-only; choose another place"),
        (errno.EACCES, "check its permissions or choose another place"),
        (errno.EIO, "check the path"),
    ],
)
def test_an_error_of_the_file_system_gets_its_place_and_remedy(number, remedy):
    with pytest.raises(RunError) as caught, named_errors(Path("runs/x")):
        raise OSError(number, os.strerror(number))
    assert str(caught.value) == f"runs/x: {os.strerror(number)}; {remedy}"


@pytest.fixture
def journal(tmp_path):
    """A journal of three lines."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {step}}}\n' for step in (1, 2, 3)))
    return path


def test_a_journal_grows_by_one_line_a_record(journal):
    opened = Journal(journal, keep=None)
    opened.append({"step": 4, "problem": "3×4"})
    assert [json.loads(line)["step"] for line in journal.read_text().splitlines()] == [1, 2, 3, 4]
    opened.sync()
    opened.close()


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_lines_after_the_checkpoint_are_cut_off(journal, keep):
    Journal(journal, keep=keep).close()
    assert len(journal.read_text().splitlines()) == keep


@pytest.mark.parametrize("keep", [3, None])
def test_a_line_torn_by_a_kill_is_cut_off(journal, keep):
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"step": 4, "gra')
    Journal(journal, keep=keep).close()
    assert journal.read_bytes() == whole


def test_a_history_shorter_than_its_checkpoint_is_refused_and_left_alone(journal):
    before = journal.read_bytes()
    with pytest.raises(RunError, match="holds 3 whole lines where the checkpoint follows 4"):
        Journal(journal, keep=4)
    assert journal.read_bytes() == before


def test_a_record_written_in_part_is_no_space(journal):
    opened = Journal(journal, keep=None)
    opened.close()
    opened._file = type("Full", (), {"write": lambda self, line: len(line) - 1, "close": lambda self: None})()
    with pytest.raises(RunError, match="metrics.jsonl: No space left on device; free some space"):
        opened.append({"step": 4})


def test_a_record_holds_no_number_that_json_lacks(journal):
    opened = Journal(journal, keep=None)
    with pytest.raises(ValueError, match="not JSON compliant"):
        opened.append({"grad_norm": float("inf")})
    opened.close()
