"""Evaluation of a finished run: what it recorded, again, and whatever else is asked for."""

import json
from dataclasses import asdict

import pytest

import assay
from assay.errors import ConfigError, Interrupted, RunError
from assay.training.config import POINTS


@pytest.mark.parametrize("split", ["train", "test"])
def test_it_gives_the_recorded_points_again(finished, split):
    made = assay.evaluate(finished, split)
    recorded = json.loads((finished / "results.json").read_text())["points"]
    assert list(made.points) == list(POINTS)
    for name, point in made.points.items():
        there = recorded[name][split]
        assert there["problems"] == asdict(point.exact)
        assert (there["success"], there["kl"]) == (point.exact.mean_success, point.exact.mean_kl)
        assert there["sampled"] == {**asdict(point.sampled), "level": 0.95}
    assert [problem.prompt for problem in made.problems] == json.loads((finished / "data.json").read_text())[split]


def test_another_number_of_samples_leaves_the_exact_values_alone(finished):
    few, many = assay.evaluate(finished, samples=10), assay.evaluate(finished, samples=200)
    for name in POINTS:
        assert few.points[name].exact == many.points[name].exact
        assert (few.points[name].sampled.trials, many.points[name].sampled.trials) == (10, 200)
        interval = [made.points[name].sampled.high - made.points[name].sampled.low for made in (few, many)]
        assert interval[1] < interval[0]


def test_a_split_that_does_not_exist_is_refused(finished):
    with pytest.raises(ConfigError, match="split = 'validation': no such split; use one of train, test"):
        assay.evaluate(finished, "validation")


@pytest.mark.parametrize("samples", [0, -5])
def test_fewer_than_one_sample_is_refused(finished, samples):
    with pytest.raises(ConfigError, match=f"samples = {samples}: need at least 1"):
        assay.evaluate(finished, samples=samples)


def test_an_unfinished_run_says_how_to_finish_it(small, tmp_path):
    with pytest.raises(Interrupted):
        assay.train(small, tmp_path / "run", stopping=lambda: True)
    with pytest.raises(
        RunError, match=f"{tmp_path}/run: stands at warmup step 1 .*assay train --resume {tmp_path}/run"
    ):
        assay.evaluate(tmp_path / "run")
