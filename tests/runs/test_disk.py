"""A disk that is full or read-only: a real one, a small tmpfs in a mount namespace of its own."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from assay.evidence.manifest import BOUND, MANIFEST

SCRIPT = Path(__file__).with_name("full_disk.py")
WITHOUT_A_CLOCK = (*BOUND, MANIFEST)


def may_mount() -> bool:
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not may_mount(), reason="needs the right to mount a tmpfs (unshare -rm)")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("disk")


@pytest.fixture(scope="module")
def seen(process, place, finished, small):
    """What ``full_disk.py`` saw; it copies the runs it finished back to ``place``."""
    shutil.copytree(finished, place / "finished")
    (place / "recipe.json").write_text(json.dumps(small))
    worker = process("-rm", sys.executable, SCRIPT, place, executable="unshare")
    out, err = worker.communicate()
    assert worker.returncode == 0, err
    return json.loads(out)


def assert_one_line(answer, complaint):
    assert answer["code"] == 2
    assert answer["stderr"].startswith("assay: ")
    assert answer["stderr"].endswith(f"{complaint}\n")
    assert answer["stderr"].count("\n") == 1


def assert_same_run(run, other):
    same = {name: (run / name).read_bytes() == (other / name).read_bytes() for name in WITHOUT_A_CLOCK}
    assert all(same.values()), same


def test_a_run_that_finds_no_space_says_so_and_finishes_once_there_is_some(seen, place):
    for size, scene in seen["sizes"].items():
        assert_one_line(scene["full"], "No space left on device; free some space")
        assert scene["freed"] == {"code": 0, "stderr": ""}, size
        assert_same_run(place / f"after-{size}", place / "finished")


def test_the_sizes_stop_it_at_its_start_in_the_middle_and_at_its_end(seen):
    left = [scene["left"] for scene in seen["sizes"].values()]
    assert left[0] is None, "a run that never started leaves nothing"
    assert any(names and "results.json" not in names for names in left)
    assert any(names and "results.json" in names for names in left)
    assert not any(name.endswith(".partial") for names in left for name in names or [])


def test_a_history_that_finds_no_space_is_said_and_continued(seen, place):
    assert_one_line(seen["filling"]["full"], "run/metrics.jsonl: No space left on device; free some space")
    assert seen["filling"]["freed"] == {"code": 0, "stderr": ""}
    assert_same_run(place / "after-filling", place / "never-full")


@pytest.mark.parametrize("command", ["train", "resume", "report", "audit"])
def test_what_must_write_says_that_the_disk_is_read_only(seen, command):
    complaint = "Read-only file system; the file system is read-only; choose another place"
    assert_one_line(seen["read-only"]["writing"][command], complaint)
    assert ".partial" not in seen["read-only"]["writing"][command]["stderr"]


@pytest.mark.parametrize("command", ["evaluate", "verify", "compare", "report"])
def test_what_only_reads_works_on_a_read_only_disk(seen, command):
    assert seen["read-only"]["reading"][command] == {"code": 0, "stderr": ""}
