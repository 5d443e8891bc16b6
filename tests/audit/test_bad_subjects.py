"""A check answers with a verdict whatever its subject is and returns: it never raises."""

from pathlib import Path


def test_no_subject_breaks_a_check(process):
    command = process("-W", "ignore", Path(__file__).with_name("bad_subjects.py"))
    output, errors = command.communicate()
    assert (output, errors, command.returncode) == ("", "", 0)
