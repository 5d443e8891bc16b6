"""Every specimen and non-bug in this process, with types checked: caught, not flagged, and with a witness.

The bench's own test runs them all once more, as the command does.
"""

import pytest

from assay.verdicts import Verdict
from specimens.bench import collect, examine
from specimens.lists import read_list

COLLECTION = collect()
BUGS = read_list()


@pytest.mark.parametrize("specimen", COLLECTION.specimens, ids=lambda specimen: specimen.bug)
def test_the_wrong_form_is_caught_and_the_right_one_passes(specimen):
    result = examine(specimen, BUGS[specimen.bug].invariant)
    assert result.caught, result.wrong
    assert not result.false_alarm, result.right
    assert result.wrong.findings, "a verdict without a witness teaches nothing"


@pytest.mark.parametrize("nonbug", COLLECTION.nonbugs, ids=lambda nonbug: nonbug.report.split(";")[0])
def test_a_report_that_was_no_bug_passes(nonbug):
    made = nonbug.check(nonbug.form)
    assert made.verdict is Verdict.HOLDS, made


@pytest.mark.parametrize("invariant", sorted({bug.invariant for bug in BUGS.values()}))
def test_every_decidable_report_of_an_invariant_has_one_specimen_and_every_other_a_reason(invariant):
    filed = {name: bug.exact_decidable for name, bug in BUGS.items() if bug.invariant == invariant}
    made = [specimen.bug for specimen in COLLECTION.specimens if specimen.bug in filed]
    assert sorted(made) == sorted(name for name, decidable in filed.items() if decidable)
    assert {name for name in COLLECTION.undecidable if name in filed} == filed.keys() - set(made)
