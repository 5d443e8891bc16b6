"""What the page claims follows from the numbers: other numbers, other claims."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from assay.report import prose, remarks
from assay.report.read import read_run
from assay.report.record import Run


@pytest.fixture
def run(sampled_run: Path) -> Run:
    return read_run(sampled_run)


def with_success(run: Run, *, train: float, test: float) -> Run:
    success = {"train": train, "test": test}
    after = {split: replace(point, success=success[split]) for split, point in run.results.points["rl"].items()}
    return replace(run, results=replace(run.results, points={**run.results.points, "rl": after}))


def heads(made: list[remarks.Remark]) -> list[str]:
    return [remark.head for remark in made]


def everything(run: Run) -> str:
    return " ".join(remark.text for remark in remarks.what_it_shows(run) + remarks.what_it_does_not_show(run))


@pytest.mark.parametrize(
    ("train", "test", "head"),
    [
        (0.9, 0.05, "Memorising is not arithmetic"),
        (0.9, 0.0, "Memorising is not arithmetic"),
        (0.9, 0.8, "Much of it carries over"),
        (0.015, 0.012, "Little was learnt"),
    ],
)
def test_generalisation_is_judged_by_the_numbers(run: Run, train: float, test: float, head: str) -> None:
    assert heads(remarks.what_it_shows(with_success(run, train=train, test=test)))[0] == head


def test_share_that_carries_over(run: Run) -> None:
    train, test, chance = 0.61, 0.07, 0.01
    text = remarks.what_it_shows(with_success(run, train=train, test=test))[0].text
    assert f"{100 * (test - chance) / (train - chance):.1f}% carries over" in text


def test_objective_of_one_step(run: Run) -> None:
    assert "its own 5 problems at its own weights, not over all 20" in everything(run)
    whole = replace(run, settings=replace(run.settings, problems_per_step=20))
    assert "over all 20 training problems at its own weights" in everything(whole)
    assert "its own 5 problems" not in everything(whole)


def test_training_reward_is_of_the_last_pass(run: Run) -> None:
    last = [step.strict_reward for step in run.rl][-run.cycle :]
    assert run.cycle == 4
    assert f"{100 * sum(last) / 4:.1f}% over the last 4 steps" in everything(run)
    assert "gets no interval" in everything(run)


def test_clipped_steps_are_counted(run: Run) -> None:
    clipped = sum(step.clipped_grad_norm < step.grad_norm * 0.999 for step in run.rl)
    assert f"shortened it in {clipped} of {len(run.rl)} steps" in everything(run)


def test_no_rl_no_claims_about_it(run: Run) -> None:
    without = replace(run, rl=())
    assert not {"A success rate in training", "A step along the gradient"} & set(
        heads(remarks.what_it_does_not_show(without))
    )
    assert "How far RL moved the policy" not in heads(remarks.what_it_shows(without))
    assert prose.headline_in_words(without).startswith("Success without RL")


def test_an_exact_run_draws_nothing(exact_run: Path) -> None:
    run = read_run(exact_run)
    assert "computes exactly" in everything(run) and "interval" not in everything(run)
    assert "draws no responses" in prose.budget_in_words(run, [])


def test_participation_names_what_stayed(run: Run) -> None:
    assert prose.participation_in_words(run).startswith("All 17 tensors moved")
    still = replace(run.results.tensors[0], max_abs_change=0.0)
    silent = replace(run.results.tensors[1], last_gradient_norm=0.0)
    some = replace(run, results=replace(run.results, tensors=(still, silent, *run.results.tensors[2:])))
    words = prose.participation_in_words(some)
    assert f"{still.name} did not move; {silent.name} had no gradient" in words and "whole network" not in words


def test_missed_intervals_are_counted(run: Run) -> None:
    inside = with_success(run, train=run.results.points["rl"]["train"].low, test=run.results.points["rl"]["test"].high)
    outside = with_success(run, train=1.0, test=1.0)
    before = sum(point.missed for name in ("init", "warmup") for point in run.results.points[name].values())
    assert f"{6 - before} of 6 contain" in prose.intervals_in_words(inside).replace("all 6", "6 of 6")
    assert f"{4 - before} of 6 contain" in prose.intervals_in_words(outside)
    assert "About 1 in 20" in prose.intervals_in_words(run)
    assert sum(point.missed for point in outside.results.points["rl"].values()) == 2


def test_silent_groups_with_and_without_kl(run: Run) -> None:
    assert "is not silent by itself" in prose.zero_signal_in_words(run)
    free = replace(run, settings=replace(run.settings, beta=0.0))
    assert "every group of equal rewards is silent" in prose.zero_signal_in_words(free)
