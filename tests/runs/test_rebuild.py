"""The page of a finished run, built again from its files, into any place but the run."""

import pytest

from assay.errors import EvidenceError, RunError
from assay.runs.report import report


def test_the_page_that_is_there_is_the_page_that_is_built(finished, tmp_path):
    assert report(finished) == finished / "report.html"
    assert report(finished, tmp_path / "new" / "page.html") == tmp_path / "new" / "page.html"
    assert (tmp_path / "new" / "page.html").read_bytes() == (finished / "report.html").read_bytes()


def test_a_page_that_was_edited_is_refused(run):
    page = run / "report.html"
    page.write_bytes(page.read_bytes() + b"\n")
    with pytest.raises(RunError, match="report.html: is not the page that this version builds"):
        report(run)
    page.unlink()
    with pytest.raises(RunError, match="report.html: cannot read"):
        report(run)


def test_a_page_is_never_written_over(finished, tmp_path):
    (tmp_path / "page.html").write_text("mine")
    with pytest.raises(RunError, match="exists already with another content and is not overwritten"):
        report(finished, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == "mine"


@pytest.mark.parametrize("name", ["page.html", "pages/page.html", "../run/page.html"])
def test_a_page_is_never_written_into_the_run(run, content, name):
    before = content(run)
    with pytest.raises(RunError, match="lies inside the run, which is never changed"):
        report(run, run / name)
    assert content(run) == before


def test_a_run_without_results_has_no_page(run):
    (run / "results.json").unlink()
    with pytest.raises(RunError, match="no finished run here"):
        report(run)


@pytest.mark.parametrize("name", ["data.json", "environment.json", "manifest.json", "metrics.jsonl", "timing.jsonl"])
def test_a_damaged_file_is_named(run, name):
    (run / name).write_text("garbage")
    with pytest.raises(EvidenceError, match=name):
        report(run)
