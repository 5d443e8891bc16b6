"""The integrity half needs no other package: it runs where nothing is installed, and says what it could not do."""

import subprocess
import venv

import pytest

from assay.evidence.sums import NAME

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The interpreter of an environment in which nothing is installed, not even pip."""
    place = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(place, with_pip=False, symlinks=True)
    return place / "bin" / "python"


@pytest.fixture
def evidence(bare, process):
    """Return a function that runs ``python -m assay.evidence`` there."""

    def check(*arguments):
        started = process("-S", "-m", "assay.evidence", *arguments, executable=bare)
        out, err = started.communicate()
        return started.returncode, out, err

    return check


def test_nothing_is_installed_there(bare):
    missing = subprocess.run([bare, "-S", "-c", "import torch"], capture_output=True, text=True)
    assert "No module named 'torch'" in missing.stderr


def test_a_good_run_holds(evidence, finished):
    code, out, err = evidence(finished)
    assert (code, err) == (0, "")
    assert [line.split(" (")[0] for line in out.splitlines()] == ["intact: holds", "complete: holds"]


def test_a_changed_run_disagrees_and_names_the_file(evidence, run):
    with (run / "checkpoint.pt").open("r+b") as file:
        file.write(b"?")
    code, out, err = evidence(run)
    assert (code, err) == (1, "")
    assert "intact: disagrees" in out
    assert "complete: disagrees" in out
    assert "  checkpoint.pt: has sha256" in out


def test_a_file_name_cannot_forge_a_verdict(evidence, run):
    (run / "x\nintact: holds (\x1b[2J").write_text("")
    code, out, _ = evidence(run)
    assert code == 1
    assert "\x1b" not in out
    assert not any(line.startswith("intact: holds") for line in out.splitlines())


def test_a_file_name_that_is_no_text_is_reported(evidence, run):
    (run / b"\xff".decode(errors="surrogateescape")).write_text("")
    code, out, err = evidence(run)
    assert (code, err) == (1, "")
    assert r"\udcff: is not listed" in out


@pytest.mark.parametrize("arguments", [["missing"], [], ["--help"], ["a", "b"]])
def test_what_is_no_run_could_not_be_checked(evidence, arguments):
    code, out, err = evidence(*arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1


def test_verify_without_torch_says_that_reproduction_could_not_run(process, finished):
    show = "import assay; [print(c.name, c.verdict, c.detail, sep='|') for c in assay.verify(sys.argv[1]).claims]"
    claims = [line.split("|") for line in process("-c", BLOCKED + show, finished).communicate()[0].splitlines()]
    assert [claim[:2] for claim in claims] == [
        ["intact", "holds"],
        ["complete", "holds"],
        ["reproduced", "could not run"],
    ]
    assert claims[2][2].startswith("needs torch, which is not installed")


def test_the_command_without_torch_checks_the_files_and_could_not_run_the_rest(process, run):
    command = BLOCKED + "from assay.cli import main; sys.exit(main(['verify', sys.argv[1]]))"
    started = process("-c", command, run)
    assert "needs torch" in started.communicate()[0]
    assert started.returncode == 2
    (run / NAME).write_text("")
    started = process("-c", command, run)
    started.communicate()
    assert started.returncode == 1
