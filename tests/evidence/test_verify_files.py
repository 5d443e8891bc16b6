"""*Intact* and *complete*, of a run at every stage. What harms a sealed run is in ``tests/attacks``."""

import shutil

import pytest

from assay.errors import RunError
from assay.evidence.verify import verify_files
from assay.verdicts import Verdict


def verdicts(run):
    return [claim.verdict for claim in verify_files(run)]


def test_a_finished_run_is_intact_and_complete(finished):
    assert verdicts(finished) == [Verdict.HOLDS, Verdict.HOLDS]


def test_it_does_not_matter_where_the_run_lies_or_how_it_is_named(run, tmp_path, monkeypatch):
    monkeypatch.chdir(run)
    assert verdicts(".") == [Verdict.HOLDS, Verdict.HOLDS]
    (tmp_path / "link").symlink_to(run)
    assert verdicts(tmp_path / "link") == [Verdict.HOLDS, Verdict.HOLDS]


@pytest.mark.parametrize("name", ["missing", "empty", "file"])
def test_what_is_no_run_cannot_be_verified(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=name):
        verify_files(tmp_path / name)


def test_a_run_that_has_not_finished_says_how_to_finish_it(run):
    for name in ("SHA256SUMS", "manifest.json", "provenance.intoto.json", "results.json", "report.html"):
        (run / name).unlink()
    intact, complete = verify_files(run)
    assert (intact.verdict, complete.verdict) == (Verdict.COULD_NOT_RUN, Verdict.COULD_NOT_RUN)
    assert intact.detail.endswith(f"assay train --resume {run}")
    assert "manifest.json" in complete.detail


def test_a_run_killed_while_it_was_sealed_is_not_taken_for_intact(run):
    (run / "SHA256SUMS").unlink()
    intact = verify_files(run)[0]
    assert intact.verdict is Verdict.DISAGREES
    assert intact.findings[0].startswith("SHA256SUMS: is missing")
    assert f"assay train --resume {run}" in intact.findings[0]


def test_two_runs_in_one_directory_are_no_run(run, finished):
    shutil.copytree(finished, run / "inner")
    intact, complete = verify_files(run)
    assert intact.findings == ("inner: is not a regular file",)
    assert complete.findings == ("inner: is no file of a run",)
