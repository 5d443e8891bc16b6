"""The reports about expected gradients, live options and fixed points: each caught, none of the right forms flagged."""

import pytest

from assay.verdicts import Verdict
from specimens import importance, inert, kl, starting_point, temporal
from specimens.bench import examine
from specimens.lists import read_list
from specimens.nonbugs_losses import NONBUGS

FAMILIES = (kl, importance, temporal, inert, starting_point)
SPECIMENS = [specimen for family in FAMILIES for specimen in family.SPECIMENS]
BUGS = {name: bug for name, bug in read_list().items() if bug.invariant in ("I1", "I5", "I6")}


@pytest.mark.parametrize("specimen", SPECIMENS, ids=lambda specimen: specimen.bug)
def test_the_wrong_form_is_caught_and_the_right_one_passes(specimen):
    result = examine(specimen, BUGS[specimen.bug].invariant)
    assert result.caught, result.wrong
    assert not result.false_alarm, result.right
    assert result.wrong.findings, "a verdict without a witness teaches nothing"


@pytest.mark.parametrize("nonbug", NONBUGS, ids=lambda nonbug: nonbug.report.split(";")[0])
def test_a_report_that_was_no_bug_passes(nonbug):
    made = nonbug.check(nonbug.form)
    assert made.verdict is Verdict.HOLDS, made


def test_every_decidable_report_has_one_specimen_and_every_other_a_reason():
    assert sorted(specimen.bug for specimen in SPECIMENS) == sorted(
        name for name, bug in BUGS.items() if bug.exact_decidable
    )
    assert set(starting_point.UNDECIDABLE) == {name for name, bug in BUGS.items() if not bug.exact_decidable}
