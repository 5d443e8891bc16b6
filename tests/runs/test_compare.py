"""Two runs beside each other: identical, different, or not comparable."""

import json
import shutil

import pytest
import torch

import assay
from assay.errors import CheckpointError, EvidenceError, Interrupted, RunError
from assay.evaluation.gradient import leave_one_out_noise
from assay.runs.train import load_state, open_run
from assay.verdicts import Verdict


@pytest.fixture(scope="module")
def twin(small, tmp_path_factory):
    """The same plan with the exact gradient."""
    exact = small["rl"] | {"estimator": "exact", "num_generations": 0}
    return assay.train(small | {"rl": exact}, tmp_path_factory.mktemp("twin") / "run").directory


def test_a_run_and_its_copy_are_identical(finished, run):
    made = assay.compare(finished, run)
    assert made.claim.verdict is Verdict.HOLDS
    assert made.claim.detail.startswith("identical")
    assert (made.probability_gap, made.gradient_gap) == (0.0, 0.0)
    assert set(made.curve_gaps.values()) == {0.0}
    assert made.noise is None


def test_runs_that_differ_by_rounding_are_close(finished, run):
    path = run / "checkpoint.pt"
    content = torch.load(path, weights_only=True)
    content["policy"]["head.weight"][0, 0] *= 1 + 2**-20
    torch.save(content, path)
    made = assay.compare(finished, run)
    assert made.claim.verdict is Verdict.HOLDS
    assert made.claim.detail.startswith("close, not identical")
    assert 0 < made.probability_gap < 1e-6


def test_a_sampled_run_and_its_exact_twin_differ_and_the_noise_is_what_sampling_cost(finished, twin):
    made = assay.compare(finished, twin)
    assert made.claim.verdict is Verdict.DISAGREES
    assert made.settings == ("rl.estimator: rloo, exact", "rl.num_generations: 8, 0")
    assert made.same_start
    recipe, splits = open_run(finished)
    start = load_state(finished, recipe).reference
    expected = leave_one_out_noise(start, start, splits["train"][:5], beta=recipe.rl.beta, group_size=8)
    assert made.noise == expected
    assert expected.variance > 0


def test_the_gaps_are_those_of_the_recorded_numbers(finished, twin):
    made = assay.compare(finished, twin)
    rows = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (finished, twin)]
    pairs = [(a, b) for a, b in zip(*rows, strict=True) if a["phase"] == "rl"]
    for name, gap in made.curve_gaps.items():
        assert gap == max(abs(a[name] - b[name]) for a, b in pairs)
    ends = [json.loads((run / "results.json").read_text())["points"]["rl"] for run in (finished, twin)]
    for split in ("train", "test"):
        assert made.success[split] == tuple(end[split]["success"] for end in ends)
        assert made.kl[split] == tuple(end[split]["kl"] for end in ends)


def test_equal_weights_with_another_result_or_step_are_different(finished, run):
    """Close is said of probabilities, gradients, steps and results, not of weights alone."""
    results = json.loads((run / "results.json").read_text())
    results["points"]["rl"]["train"]["success"] = 0.99
    (run / "results.json").write_text(json.dumps(results))
    made = assay.compare(finished, run)
    assert made.probability_gap == 0.0 and made.claim.verdict is Verdict.DISAGREES
    assert any("points.rl.train.success: first" in line for line in made.claim.findings)


def test_different_problems_cannot_be_compared(finished, small, tmp_path):
    other = assay.train(small | {"seed": 30}, tmp_path / "other").directory
    with pytest.raises(RunError, match="different problems, so nothing can be compared"):
        assay.compare(finished, other)


def test_a_run_that_is_missing_or_unfinished_is_named(finished, small, tmp_path):
    with pytest.raises(RunError, match="gone: no such run directory"):
        assay.compare(finished, tmp_path / "gone")
    stopped = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        assay.train(small, stopped, stopping=lambda: True)
    with pytest.raises(RunError, match=f"stands at warmup step 1 .*assay train --resume {stopped}"):
        assay.compare(finished, stopped)


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("checkpoint.pt", "garbage", CheckpointError),
        ("metrics.jsonl", "", EvidenceError),
        ("metrics.jsonl", "{}\n", EvidenceError),
        ("metrics.jsonl", "garbage", EvidenceError),
        ("results.json", "{}", EvidenceError),
        ("results.json", '{"points": []}', EvidenceError),
        ("results.json", "garbage", EvidenceError),
    ],
)
def test_a_damaged_file_is_named_with_its_run(finished, run, name, text, error):
    (run / name).write_text(text)
    with pytest.raises(error, match=f"{run}/.*{name}"):
        assay.compare(finished, run)


def test_a_missing_file_is_named_with_its_run(finished, run):
    (run / "metrics.jsonl").unlink()
    with pytest.raises(RunError, match=f"{run}/metrics.jsonl: cannot read"):
        assay.compare(finished, run)


def test_it_does_not_matter_where_the_runs_lie(finished, tmp_path):
    (tmp_path / "link").symlink_to(finished)
    assert assay.compare(tmp_path / "link", shutil.copytree(finished, tmp_path / "copy")).claim.verdict is Verdict.HOLDS
