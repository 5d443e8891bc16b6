"""The integrity half needs no other package: it runs where nothing is installed, and says what it could not do."""

import venv
from pathlib import Path

import pytest

import assay
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
def bare(process, tmp_path_factory):
    """Return a function that runs Python in an environment with this package alone, not even pip beside it."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place / "venv", with_pip=False, symlinks=True)
    (place / "only").mkdir()
    (place / "only" / "assay").symlink_to(Path(assay.__file__).parent)

    def run(*arguments):
        python = place / "venv" / "bin" / "python"
        started = process("-S", *arguments, executable=python, PYTHONPATH=str(place / "only"))
        out, err = started.communicate()
        return started.returncode, out, err

    return run


@pytest.fixture
def evidence(bare):
    """Return a function that runs ``python -m assay.evidence`` there."""
    return lambda *arguments: bare("-m", "assay.evidence", *arguments)


@pytest.mark.parametrize("name", ["torch", "numpy", "pydantic", "jinja2"])
def test_nothing_else_is_installed_there(bare, name):
    assert f"No module named '{name}'" in bare("-c", f"import assay, {name}")[2]


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
