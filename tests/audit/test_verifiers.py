"""I9 on graders that are known to be right, and on each way to be wrong."""

import os
import re
import time

import pytest

from assay.audit.invariants.killable import run_each
from assay.audit.invariants.verifiers import Case, corrupted, score_of, verifier
from assay.types import Outcome
from assay.verdicts import Verdict

CASES = [Case("Six times seven?", "42", right=("42.0",), wrong=("24",)), Case("Capital of France?", "Paris")]
NUMBER = re.compile(r"-?[0-9]{1,9}(\.0)?")


def same(said, gold):
    if said is None:
        return None
    if NUMBER.fullmatch(said) and NUMBER.fullmatch(gold):
        return float(float(said) == float(gold))
    return float(said == gold != "")


def bare(response, gold):
    return same(response, gold)


def stated(answer):
    return f"The answer is: {answer}."


def last(text):
    found = re.findall(r"The answer is: (.*?)\.(?=\n|$)", text)
    return found[-1] if found else None


def from_text(response, gold):
    return same(last(response), gold)


def from_messages(messages, gold):
    said = "".join(message["content"] for message in messages if message["role"] == "assistant")
    return Outcome(same(last(said), gold), "right")


def under_other_names(solution_str, ground_truth):
    return {"score": same(last(solution_str), ground_truth)}


def test_right_graders_hold():
    assert verifier(bare, CASES).verdict is Verdict.HOLDS
    for grade in (from_text, from_messages, under_other_names):
        found = verifier(grade, CASES, write=stated)
        assert found.verdict is Verdict.HOLDS, found
    assert "responses to 2 questions" in found.exactness


def first(response, gold):
    found = re.findall(r"The answer is: (.*?)\.(?=\n|$)", response)
    return same(found[0], gold) if found else 0


def anywhere(response, gold):
    return float(bool(gold) and gold in response)


def any_statement(response, gold):
    return float(any(same(found, gold) for found in re.findall(r"The answer is: (.*?)\.(?=\n|$)", response)))


def near_the_end(response, gold):
    return from_text(response[-200:], gold)


def tools_too(messages, gold):
    return from_text("".join(message["content"] for message in messages), gold)


def exact_string(response, gold):
    return float(last(response) == gold)


def lenient_on_bad_gold(response, gold):
    return from_text(response, gold) if re.fullmatch(r"\w[\w.]*", gold) else 1.0


def leading_digits(response, gold):
    said = last(response)
    return float(said is not None and gold != "" and said[:1] == gold[:1]) or from_text(response, gold)


def crashes_on_zero(response, gold):
    if "1/0" in response:
        raise ZeroDivisionError("division by zero")
    return from_text(response, gold)


def leaves(response, gold):
    if "nan" in response:
        os._exit(3)
    return from_text(response, gold)


WRONG = [
    (anywhere, "the gold answer given up for another"),
    (any_statement, "a list of answers"),
    (near_the_end, "the gold answer and then much text"),
    (tools_too, "a tool says the gold answer, the model none"),
    (exact_string, "an equivalent answer: 'The answer is: 42.0.' against gold '42' scores 0, and must score 1"),
    (lenient_on_bad_gold, "an unreadable gold answer"),
    (leading_digits, "a wrong answer"),
    (crashes_on_zero, "a hostile answer: 'The answer is: 1/0.' against gold '42': the grader raised ZeroDivisionError"),
    (leaves, "it ended its process with exit code 3"),
]


@pytest.mark.parametrize(("grade", "witness"), WRONG, ids=lambda value: getattr(value, "__name__", ""))
def test_what_is_wrong_is_shown_by_the_probe_it_fails(grade, witness):
    found = verifier(grade, CASES, write=stated)
    assert found.verdict is Verdict.DISAGREES
    assert any(witness in line for line in found.findings), found.findings


def test_the_first_statement_is_as_good_as_the_last():
    """Both conventions are in use; neither is credited for a list."""
    assert verifier(first, CASES, write=stated).verdict is Verdict.HOLDS


def test_a_grader_that_hangs_is_killed_and_the_rest_is_still_asked():
    def hangs(response, gold):
        while response == "inf" or response == "-inf":
            pass
        return anywhere(response, gold)

    begun = time.monotonic()
    found = verifier(hangs, CASES[:1], seconds=0.5)
    assert time.monotonic() - begun < 6
    assert any("'-inf' against gold '42': no answer within 0.5 s" in line for line in found.findings)
    assert any("a list of answers" in line for line in found.findings), "asked after the hang"


def test_code_that_no_timer_reaches_is_killed_too():
    """One long computation in C, with signals ignored."""
    import signal

    def deaf(item):
        for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        return 9**9**8 if item == "stuck" else item

    endings = run_each(deaf, ["a", "stuck", "b"], seconds=0.5)
    assert [ending.how for ending in endings] == ["returned", "hung", "returned"]
    assert [endings[0].value, endings[2].value] == ["a", "b"]


def test_every_ending_is_told_apart():
    def ends(how):
        if how == "raised":
            raise SystemExit("enough")
        if how == "died":
            os._exit(7)
        return how

    endings = run_each(ends, ["returned", "raised", "died", "returned", "died"], seconds=5.0)
    assert [ending.how for ending in endings] == ["returned", "raised", "died", "returned", "died"]
    assert endings[1].why == "SystemExit: enough" and "exit code 7" in endings[2].why
    assert run_each(ends, [], seconds=1.0) == []


def test_a_grader_that_judges_by_the_question_needs_no_gold():
    def product(question, response):
        return float(response in {"42", "42.0"}) if "seven" in question else float(response == "Paris")

    assert verifier(product, CASES).verdict is Verdict.HOLDS


def test_partial_credit_can_be_declared():
    def partial(response, gold):
        return same(response, gold) or 0.1

    assert verifier(partial, CASES).verdict is Verdict.DISAGREES
    found = verifier(partial, CASES, wrong_at_most=0.1)
    assert found.verdict is Verdict.HOLDS, found


@pytest.mark.parametrize(
    ("grade", "cases", "reason"),
    [
        (lambda answer, entry: 1.0, CASES, "asks for 'answer'; it can have question, response, gold"),
        (lambda response, gold: "yes", CASES, "scores nothing: it returned str, which is no score"),
        (lambda response, gold: {}, CASES, "it returned no number"),
        (lambda response, gold: 1 / 0, CASES, "ZeroDivisionError"),
        (bare, [], "no case"),
    ],
)
def test_what_cannot_be_audited_says_why(grade, cases, reason):
    found = verifier(grade, cases)
    assert found.verdict is Verdict.COULD_NOT_RUN and reason in found.detail


def test_corruption_changes_what_matters():
    assert corrupted("42") == ["52", "43"]
    assert corrupted("9") == ["0"]
    assert corrupted("-x/2+3/4") == ["-x/3+3/4", "-x/2+3/5"]
    assert corrupted("Paris") == ["Parit"]
    assert corrupted("fizz") == ["fiza"]
    assert corrupted("é!") == []


def test_scores_are_read_from_what_graders_return():
    assert [score_of(made) for made in (True, 0, 0.5, None)] == [1.0, 0.0, 0.5, None]
    assert score_of(Outcome(None, "timeout")) is None
    assert score_of({"score": 1, "why": "same"}) == 1.0
