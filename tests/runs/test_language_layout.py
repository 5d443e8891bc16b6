"""A directory that is replaced: old or new after a death at any moment, and nothing else."""

import errno
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from language_kills import NEW, OLD

from assay.errors import RunError
from assay.runs.language.layout import Layout, replacing, settle

SCRIPT = Path(__file__).with_name("language_kills.py")


@pytest.fixture(scope="module")
def cases(process, tmp_path_factory):
    worker = process(SCRIPT, tmp_path_factory.mktemp("kills"))
    out, err = worker.communicate()
    assert worker.returncode == 0, err
    return {(case["first"], case["again"]): case["found"] for case in json.loads(out)}


@pytest.mark.parametrize("again", [False, True], ids=["killed once", "and at every moment of the recovery"])
def test_a_death_before_any_system_call_leaves_the_old_directory_or_the_new_one(cases, again):
    found = cases[False, again]
    assert all(one["there"] and one["beside"] == [] for one in found)
    assert all(one["content"] in (OLD, NEW) for one in found)
    assert found[0]["content"] == OLD
    assert found[-1]["content"] == NEW
    assert len(found) > 20


@pytest.mark.parametrize("again", [False, True])
def test_a_death_while_the_first_one_is_written_leaves_none_or_all_of_it(cases, again):
    found = cases[True, again]
    assert all(one["content"] in (None, NEW) and one["beside"] == [] for one in found)
    assert found[0]["content"] is None
    assert found[-1]["content"] == NEW


WRITER = """
import itertools, sys
from pathlib import Path
from assay.runs.language.layout import replacing
directory = Path(sys.argv[1])
for number in itertools.count():
    with replacing(directory) as partial:
        for name in "abc":
            (partial / name).write_text(f"{number}" * 1000)
    print(number, flush=True)
"""


def test_a_process_killed_at_random_leaves_one_whole_version(process, tmp_path):
    directory = tmp_path / "checkpoint"
    for delay in (0.0, 0.003, 0.007, 0.013):
        worker = process("-c", WRITER, directory)
        assert worker.stdout.readline() == "0\n"
        time.sleep(delay)
        worker.send_signal(signal.SIGKILL)
        worker.communicate()
        assert settle(directory)
        texts = {(directory / name).read_text() for name in "abc"}
        assert len(texts) == 1
        assert sorted(path.name for path in directory.iterdir()) == ["a", "b", "c"]
        assert list(tmp_path.iterdir()) == [directory]


def test_everything_is_on_the_disk_before_the_old_one_gives_way(tmp_path, monkeypatch):
    done, fsync, rename = [], os.fsync, Path.rename
    with replacing(tmp_path / "a") as partial:
        (partial / "old").write_text("")
    monkeypatch.setattr(os, "fsync", lambda descriptor: (done.append("flush"), fsync(descriptor)))
    monkeypatch.setattr(Path, "rename", lambda path, to: (done.append("rename"), rename(path, to))[1])
    with replacing(tmp_path / "a") as partial:
        (partial / "inner").mkdir()
        (partial / "inner" / "x").write_text("")
        (partial / "y").write_text("")
    files, folders = 2, 2
    assert done == ["flush"] * (files + folders) + ["rename", "flush", "rename", "flush"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()])
def test_a_block_that_fails_leaves_the_old_one_and_nothing_else(tmp_path, error):
    with replacing(tmp_path / "a") as partial:
        (partial / "old").write_text("")
    expected = RunError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected, match=None) as caught, replacing(tmp_path / "a") as partial:
        (partial / "new").write_text("")
        raise error
    if expected is RunError:
        assert str(caught.value) == f"{tmp_path / 'a'}: No space left on device; free some space"
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == ["a", "a/old"]


def test_an_error_of_the_file_system_in_words_alone_is_one_too(tmp_path):
    """So safetensors and tokenizers report it; other errors pass as they are."""
    with pytest.raises(RunError, match="a: No space left on device; free some space"), replacing(tmp_path / "a"):
        raise Exception("Error while serializing: I/O error: No space left on device (os error 28)")
    with pytest.raises(ZeroDivisionError, match="28"), replacing(tmp_path / "a"):
        raise ZeroDivisionError("28")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_when_it_is_flushed_leaves_the_old_one(tmp_path, monkeypatch):
    with replacing(tmp_path / "a") as partial:
        (partial / "old").write_text("")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="free some space"), replacing(tmp_path / "a") as partial:
        (partial / "new").write_text("")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["old"]


def test_an_old_one_left_alone_takes_its_name_back(tmp_path):
    (tmp_path / ".a.old").mkdir()
    (tmp_path / ".a.old" / "x").write_text("old")
    assert settle(tmp_path / "a")
    assert (tmp_path / "a" / "x").read_text() == "old"


def test_what_an_earlier_death_left_is_settled_before_the_next_one_is_written(tmp_path):
    for name, text in ((".a.old", "old"), (".a.partial", "new")):
        (tmp_path / name).mkdir()
        (tmp_path / name / text).write_text("")
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "a") as partial:
        assert list(partial.iterdir()) == []
        raise ZeroDivisionError
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == ["a", "a/new"]


@pytest.mark.parametrize("name", ["a", ".a.partial", ".a.old"])
def test_a_link_or_a_file_in_its_place_is_refused_and_left_alone(tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").write_text("")
    for make in (lambda path: path.symlink_to(tmp_path / "elsewhere"), lambda path: path.write_text("")):
        make(tmp_path / name)
        with pytest.raises(RunError, match="is in the place of a directory and is none"):
            settle(tmp_path / "a")
        (tmp_path / name).unlink()
    assert (tmp_path / "elsewhere" / "precious").exists()


def test_there_may_be_nothing_yet(tmp_path):
    assert not settle(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_the_paths_of_a_run_lie_in_it():
    layout = Layout(Path("run"))
    names = [name for name, value in vars(Layout).items() if isinstance(value, property)]
    assert all(getattr(layout, name).is_relative_to("run") for name in names)
    assert layout.rows("test") == Path("run/data/test.jsonl")


def test_no_torch_is_needed_to_replace_a_directory(process):
    show = "import sys, assay.runs.language.layout; print('torch' in sys.modules)"
    assert process("-c", show, executable=sys.executable).communicate()[0] == "False\n"
