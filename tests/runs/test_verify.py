"""The three claims about a run, and the fourth that trains it again. What harms a run is in ``tests/attacks``."""

import json
import platform

import pytest
import torch

import assay
from assay.errors import Interrupted, RunError
from assay.runs import reproduce
from assay.verdicts import Verdict


def test_a_finished_run_holds_in_every_respect(finished):
    made = assay.verify(finished, replay=True)
    assert [claim.name for claim in made.claims] == ["intact", "complete", "reproduced", "replayed"]
    assert {claim.verdict for claim in made.claims} == {Verdict.HOLDS}
    assert made.holds


def test_success_and_kl_are_computed_again_from_the_checkpoint(run):
    """Weights that differ by a hair give other numbers, and each of them is named."""
    content = torch.load(run / "checkpoint.pt", weights_only=True)
    content["policy"]["head.weight"] *= 1.001
    torch.save(content, run / "checkpoint.pt")
    findings = assay.verify(run).claims[2].findings
    recorded = json.loads((run / "results.json").read_text())["points"]["rl"]["train"]
    for name in ("success", "kl"):
        said = f"results.json: points.rl.train.{name}: recorded {recorded[name]}"
        assert any(finding.startswith(said) for finding in findings), findings


def test_an_unfinished_run_could_not_be_verified(small, tmp_path):
    with pytest.raises(Interrupted):
        assay.train(small, tmp_path / "run", stopping=lambda: True)
    made = assay.verify(tmp_path / "run", replay=True)
    assert {claim.verdict for claim in made.claims} == {Verdict.COULD_NOT_RUN}
    assert all("assay train --resume" in claim.detail for claim in made.claims if claim.name != "complete")


def test_what_is_no_run_is_an_error(tmp_path):
    with pytest.raises(RunError, match="gone: no such run directory"):
        assay.verify(tmp_path / "gone")


@pytest.fixture
def elsewhere(monkeypatch):
    """Verify as if on another machine, and return how verification says so."""
    environment = reproduce.describe_environment() | {"machine": "abacus"}
    monkeypatch.setattr(reproduce, "describe_environment", lambda: environment)
    return f"machine was {platform.machine()}, is abacus"


def test_on_another_build_the_numbers_are_held_to_a_wider_bound(finished, elsewhere, monkeypatch):
    monkeypatch.setattr(reproduce, "SAME_BUILD", -1.0)
    reproduced = reproduce.recompute(finished)
    assert reproduced.verdict is Verdict.HOLDS
    assert f"within {reproduce.OTHER_BUILD:.0e}" in reproduced.detail
    assert f"another build or machine: {elsewhere}" in reproduced.detail


def test_a_page_that_differs_on_another_build_proves_nothing(run, elsewhere):
    (run / "report.html").write_text("another page")
    reproduced = reproduce.recompute(run)
    assert reproduced.verdict is Verdict.COULD_NOT_RUN
    assert "report.html is not the page built here" in reproduced.detail
    assert elsewhere in reproduced.detail


def test_a_replay_that_differs_on_another_build_proves_nothing(run, request):
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text.replace('"sampler_gap": ', '"sampler_gap":  ', 1))
    assert reproduce.replay(run).verdict is Verdict.DISAGREES
    elsewhere = request.getfixturevalue("elsewhere")
    replayed = reproduce.replay(run)
    assert replayed.verdict is Verdict.COULD_NOT_RUN
    assert f"({elsewhere}), so a difference proves nothing" in replayed.detail


def test_a_replay_that_finds_no_temporary_place_could_not_run(finished, monkeypatch):
    def nowhere(*arguments, **options):
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(reproduce.tempfile, "TemporaryDirectory", nowhere)
    assert reproduce.replay(finished).verdict is Verdict.COULD_NOT_RUN
