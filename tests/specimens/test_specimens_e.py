"""Every bug filed under I4, I9, I10, I12, I13 and I14: the wrong form is caught, the right one passes."""

import pytest

from assay.verdicts import Verdict
from specimens import (
    answers_compared,
    answers_found,
    evaluation_metrics,
    group_boundaries,
    group_members,
    group_scale,
    misaligned_scores,
    rollout_seeds,
    twin_paths,
)
from specimens.bench import examine
from specimens.lists import read_list

MODULES = (
    answers_compared,
    answers_found,
    evaluation_metrics,
    group_boundaries,
    group_members,
    group_scale,
    misaligned_scores,
    rollout_seeds,
    twin_paths,
)
SPECIMENS = [specimen for module in MODULES for specimen in module.SPECIMENS]
INVARIANTS = {name: bug.invariant for name, bug in read_list().items()}


@pytest.mark.parametrize("specimen", SPECIMENS, ids=lambda specimen: specimen.bug)
def test_the_wrong_form_is_caught_and_the_right_one_passes(specimen):
    result = examine(specimen, INVARIANTS[specimen.bug])
    assert result.caught, result.wrong
    assert not result.false_alarm, result.right
    assert result.wrong.findings


def test_every_bug_of_these_invariants_is_here():
    ours = {"I4", "I9", "I10", "I12", "I13", "I14"}
    assert {specimen.bug for specimen in SPECIMENS} == {bug for bug, filed in INVARIANTS.items() if filed in ours}


def test_a_bootstrap_under_its_own_name_is_no_bug():
    for report in evaluation_metrics.NONBUGS:
        assert report.check(report.form).verdict is Verdict.HOLDS
