"""``SHA256SUMS`` against the real ``sha256sum``, and every way a list of sums can be odd."""

import hashlib
import os
import shutil
import subprocess

import pytest

from assay.evidence.sums import NAME, check_sums, sums_text


@pytest.fixture
def sealed(tmp_path):
    """A directory of two files and their sums."""
    (tmp_path / "a.txt").write_bytes(b"first\n")
    (tmp_path / "b.txt").write_bytes(b"second\n")
    (tmp_path / NAME).write_text(sums_text(tmp_path, ["b.txt", "a.txt"]))
    return tmp_path


def line(name: str, data: bytes) -> str:
    return f"{hashlib.sha256(data).hexdigest()}  {name}\n"


@pytest.mark.skipif(not shutil.which("sha256sum"), reason="needs the sha256sum tool")
def test_sha256sum_accepts_the_sums_of_a_run(run):
    command = ["sha256sum", "--check", "--strict", NAME]
    assert subprocess.run(command, cwd=run, capture_output=True).returncode == 0
    (run / "results.json").write_bytes(b"{}")
    refused = subprocess.run(command, cwd=run, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "results.json: FAILED" in refused.stdout


def test_the_sums_of_a_run_are_the_digests_of_every_other_file_in_sorted_order(finished):
    others = sorted(path for path in finished.iterdir() if path.name != NAME)
    assert (finished / NAME).read_text() == "".join(line(path.name, path.read_bytes()) for path in others)


def test_sums_are_plain_and_sorted(sealed):
    assert (sealed / NAME).read_text() == line("a.txt", b"first\n") + line("b.txt", b"second\n")
    assert check_sums(sealed) == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "a.txt: is not listed"),
        (line("a.txt", b"first\n"), "b.txt: is not listed"),
        (line("a.txt", b"first\n") + line("b.txt", b"second\n")[:-1], f"{NAME}: does not end with a line break"),
        (line("a.txt", b"first\n") + line("b.txt", b"second\n").replace("  ", " *"), f"{NAME}: line 2"),
        (line("a.txt", b"first\n") + line("b.txt", b"second\n").upper(), f"{NAME}: line 2"),
        (line("a.txt", b"first\n") + "\n" + line("b.txt", b"second\n"), f"{NAME}: line 2"),
        (line("a.txt", b"first\n") * 2 + line("b.txt", b"second\n"), f"{NAME}: line 2 lists a.txt twice"),
        (line("../a.txt", b"first\n") + line("b.txt", b"second\n"), f"{NAME}: line 1 names '../a.txt'"),
        (line("/etc/passwd", b"first\n") + line("b.txt", b"second\n"), f"{NAME}: line 1 names '/etc/passwd'"),
        (line("sub/a.txt", b"first\n") + line("b.txt", b"second\n"), f"{NAME}: line 1 names 'sub/a.txt'"),
        (line(".hidden", b"") + line("b.txt", b"second\n"), f"{NAME}: line 1 names '.hidden'"),
        (line("c.txt", b"third\n"), "c.txt: is listed in SHA256SUMS and missing"),
        (line("a.txt", b"other\n") + line("b.txt", b"second\n"), "a.txt: has sha256"),
    ],
)
def test_odd_sums_are_found(sealed, text, complaint):
    (sealed / NAME).write_text(text)
    assert any(finding.startswith(complaint) for finding in check_sums(sealed)), check_sums(sealed)


@pytest.mark.parametrize("separator", ["\r\n", "\v", "\f", "\x1c", "\x85", "\u2028"])
def test_only_a_line_feed_ends_a_line_as_for_sha256sum(sealed, separator):
    both = line("a.txt", b"first\n").rstrip() + separator + line("b.txt", b"second\n")
    (sealed / NAME).write_bytes(both.encode())
    assert any(finding.startswith(f"{NAME}: line 1") for finding in check_sums(sealed))


def test_what_is_no_regular_file_is_found_and_never_opened(sealed):
    (sealed / "a.txt").rename(sealed.parent / "elsewhere")
    (sealed / "a.txt").symlink_to(sealed.parent / "elsewhere")
    (sealed / "b.txt").unlink()
    os.mkfifo(sealed / "b.txt")
    (sealed / "c").mkdir()
    assert check_sums(sealed) == [
        "a.txt: is a symbolic link; a run holds regular files only",
        "b.txt: is not a regular file",
        "c: is not a regular file",
    ]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("a.txt")])
def test_sums_that_are_no_regular_file_are_found_and_never_opened(sealed, make):
    (sealed / NAME).unlink()
    make(sealed / NAME)
    assert any(finding.startswith(f"{NAME}: is") for finding in check_sums(sealed))
