"""The bench of public bugs: is every report there, and is a wrong verdict of ours counted as what it is?"""

import dataclasses
import io
import json

import pytest
from rich.console import Console

from assay.audit.check import INVARIANTS, SubjectError, answers, verdict_of
from assay.verdicts import Verdict
from specimens.__main__ import main
from specimens.bench import Bench, Collection, NonBug, Specimen, collect, gaps, line_of, run
from specimens.lists import Dismissed, read_dismissed, read_list
from specimens.table import by, counts, problems, record, show

BUGS = read_list()
HELD = collect()
DISMISSED = read_dismissed()


def test_every_decidable_report_has_one_specimen_and_every_other_a_reason():
    assert gaps(HELD, BUGS, DISMISSED) == ()
    assert len(BUGS) == 134
    assert len(HELD.specimens) == sum(bug.exact_decidable for bug in BUGS.values())
    assert set(HELD.undecidable) == {bug.id for bug in BUGS.values() if not bug.exact_decidable}
    assert all(bug.invariant in INVARIANTS for bug in BUGS.values())


def test_the_eleven_reports_that_were_no_bugs_are_there():
    assert len(DISMISSED) == 11 and all(entry.why for entry in DISMISSED.values())
    assert {line_of(made, DISMISSED) for made in HELD.nonbugs} == set(DISMISSED)


def test_every_wrong_form_is_caught_and_every_right_form_and_non_bug_holds(process):
    """Run the command itself: once, and without the type checks that tests put into every call."""
    command = process("-m", "specimens", "--json")
    output, errors = command.communicate()
    assert errors == "" and command.returncode in (0, 1)
    made = json.loads(output)
    assert [entry for entry in made["specimens"] if not entry["caught"] or entry["false_alarm"]] == []
    assert all(entry["wrong"]["findings"] for entry in made["specimens"]), "a disagreement has a witness"
    assert {check["verdict"] for checks in made["nonbugs"].values() for check in checks} == {"holds"}
    decidable = sum(bug.exact_decidable for bug in BUGS.values())
    assert made["all"] == {"specimens": decidable, "caught": decidable, "missed": 0, "false alarms": 0}
    assert made["passes"] and command.returncode == 0


@answers("I8")
def is_even(number):
    """Stand for a check: even numbers hold, odd ones disagree, text cannot run, None breaks it."""
    if isinstance(number, str):
        raise SubjectError(f"{number!r} is no number")
    return verdict_of("I8", "an even number", [f"{number} is odd"] if number % 2 else [])


MADE = [
    Specimen("LP-01", is_even, 1, 2),
    Specimen("LP-02", is_even, 2, 1),
    Specimen("LP-03", is_even, "one", 2),
    Specimen("LP-04", is_even, None, None),
    Specimen("OFF-01", is_even, 1, 2),
]


LINES = {"a/b#1": Dismissed("a/b#1", ("a/b#2",), "it is even")}


def bench_of(*specimens, nonbugs=()):
    wanted = {made.bug: BUGS[made.bug] for made in specimens}
    return run(Collection(specimens, nonbugs, {}), wanted, LINES if nonbugs else {}), wanted


@pytest.mark.parametrize(
    ("specimen", "caught", "false_alarm"),
    [
        (MADE[0], True, False),
        (MADE[1], False, True),  # wrong and right swapped
        (MADE[2], False, False),  # only crashes
        (MADE[3], False, True),  # the check itself breaks
        (MADE[4], False, False),  # flagged by another invariant than the one it is filed under
    ],
)
def test_misses_and_false_alarms_are_counted(specimen, caught, false_alarm):
    bench, wanted = bench_of(specimen)
    assert counts(bench.results) == (1, int(caught), int(not caught), int(false_alarm))
    assert bench.passes is (caught and not false_alarm)
    lines = problems(bench, wanted)
    assert [line.split(":")[0] for line in lines] == ["missed"] * (not caught) + ["false alarm"] * false_alarm


@pytest.mark.parametrize("specimen", [made for made in HELD.specimens if made.bug in ("OFF-01", "LP-01", "CK-01")])
def test_a_real_specimen_with_its_forms_swapped_is_a_miss_and_a_false_alarm(specimen):
    swapped = dataclasses.replace(specimen, wrong=specimen.right, right=specimen.wrong)
    bench, wanted = bench_of(swapped)
    assert counts(bench.results) == (1, 0, 1, 1) and not bench.passes
    assert specimen.check(specimen.wrong).findings[0] in problems(bench, wanted)[1], "with the witness"


def test_a_non_bug_that_is_flagged_is_a_false_alarm():
    bench, wanted = bench_of(MADE[0], nonbugs=(NonBug("a/b#1", is_even, 2), NonBug("a/b#2", is_even, 3)))
    assert not bench.passes
    assert [check.verdict for check in bench.nonbugs["a/b#1"]] == [Verdict.HOLDS, Verdict.DISAGREES], "of one line"
    assert problems(bench, wanted) == [
        "false alarm: a/b#1, no bug: I8 sampler and scorer disagrees: an even number; 3 is odd"
    ]


def test_reports_of_one_fault_share_a_form_and_are_counted_as_such():
    shared = object()
    made = [Specimen(name, is_even, shared, 2) for name in ("LP-01", "LP-02")]
    bench, wanted = bench_of(*made, dataclasses.replace(MADE[2], wrong=object()))
    assert bench.forms == 2 and record(bench, wanted)["forms"] == 2
    held = run(HELD, BUGS, DISMISSED, only=["I8"])
    assert (held.forms, len(held.results)) == (
        len({id(s.wrong) for s in HELD.specimens if BUGS[s.bug].invariant == "I8"}),
        11,
    )


def test_gaps_are_named():
    bugs = {name: BUGS[name] for name in ("LP-01", "LP-02", "LP-10")}
    twice = (MADE[0], MADE[0], dataclasses.replace(MADE[0], bug="XX-1"))
    stranger = NonBug("c/d#3; c/d#4", is_even, 2)
    assert gaps(Collection(twice, (stranger,), {"LP-02": "lazy"}), bugs, LINES) == (
        "LP-01 is decidable and has 2 specimens, not 1",
        "LP-02 is decidable and has 0 specimens, not 1",
        "LP-02 is decidable and is given a reason why not",
        "LP-10 is undecidable: need a reason and no specimen",
        "XX-1 is not in the list",
        "a/b#1 was no bug and has no form",
        "c/d#3 is not among the reports that were no bugs",
    )


def test_classes_add_up_and_invariants_come_in_their_order():
    bench, wanted = bench_of(*MADE)
    by_invariant = by(lambda bug: bug.invariant, bench, wanted)
    assert by_invariant == {"I7": (1, 0, 1, 0), "I8": (4, 1, 3, 2)} and list(by_invariant) == ["I7", "I8"]
    by_kind = by(lambda bug: bug.kind, bench, wanted)
    assert [sum(column) for column in zip(*by_kind.values(), strict=True)] == list(counts(bench.results))


@pytest.mark.parametrize("terminal", [False, True])
def test_the_table_says_what_was_found(terminal):
    bench, wanted = bench_of(*MADE[:2], nonbugs=(NonBug("a/b#1", is_even, 2),))
    screen = io.StringIO()
    show(bench, wanted, LINES, Console(file=screen, force_terminal=terminal, width=110, color_system=None))
    text = screen.getvalue()
    assert ("─" in text) is terminal
    assert "2 reports, 2 distinct forms" in text
    assert "missed: LP-02 huggingface/trl#4159, filed under I8: I8 sampler and scorer holds: an even number" in text
    assert "false alarm: LP-02 huggingface/trl#4159: I8 sampler and scorer disagrees: an even number; 1 is odd" in text
    assert "Reports that were no bugs: 1 of 1 hold." in text
    assert "a/b#1 (I8 sampler and scorer holds): it is even" in text and text.rstrip().endswith("does not pass")


def test_the_record_is_plain_json():
    bench, wanted = bench_of(*MADE)
    made = json.loads(json.dumps(record(bench, wanted), allow_nan=False))
    assert made["all"] == {"specimens": 5, "caught": 1, "missed": 4, "false alarms": 2} and made["passes"] is False
    assert [entry["caught"] for entry in made["specimens"]] == [True, False, False, False, False]


def test_the_command_answers_with_its_exit_code(capsys):
    assert main(["--only", "I7", "I11", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["all"]["specimens"] == 9 and made["all"]["missed"] == 0 and not made["nonbugs"]
    assert sorted(made["undecidable"]) == ["CK-05", "OFF-04"]
    assert main(["--only", "I7"]) == 0 and "passes" in capsys.readouterr().out


def test_an_empty_bench_does_not_pass_where_reports_are_left_out():
    assert Bench((), {}, {}, ()).passes
    assert not run(Collection((), (), {}), BUGS, DISMISSED).passes
