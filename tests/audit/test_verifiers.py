"""I9 on graders that are known to be right, and on each way to be wrong."""

import os
import re
import time

import pytest

from assay.audit.invariants.killable import run_each
from assay.audit.invariants.probes import Case, corrupted
from assay.audit.invariants.verifiers import score_of, verifier
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


def test_an_answer_that_is_taken_back_by_another_is_wrong():
    found = verifier(first, CASES, write=stated)
    assert found.verdict is Verdict.DISAGREES and len(found.findings) == 2
    assert all(line.startswith("a list of answers: 'The answer is: ") for line in found.findings)


def a_single_statement(response, gold):
    found = re.findall(r"The answer is: (.*?)\.(?=\n|$)", response)
    return same(found[0], gold) if len(found) == 1 else 0


def test_another_answer_before_the_gold_one_is_right_only_where_that_is_declared():
    for grade in (from_text, a_single_statement):
        assert verifier(grade, CASES, write=stated).verdict is Verdict.HOLDS
    assert verifier(from_text, CASES, write=stated, last_counts=True).verdict is Verdict.HOLDS
    found = verifier(a_single_statement, CASES, write=stated, last_counts=True)
    assert [line.split(":")[0] for line in found.findings] == ["another answer and then the gold one"] * 2


def digits_only(response, gold):
    return float(re.sub(r"[^0-9]", "", response) == re.sub(r"[^0-9]", "", gold) != "")


def unsigned(response, gold):
    return float(bool(NUMBER.fullmatch(response) and NUMBER.fullmatch(gold)) and abs(float(response)) == float(gold))


def begins_with_gold(response, gold):
    return float(gold != "" and response.startswith(gold))


def ends_with_gold(response, gold):
    return float(gold != "" and response.endswith(gold))


def begins_gold(response, gold):
    return float(response != "" and gold.startswith(response))


def ends_gold(response, gold):
    return float(response != "" and gold.endswith(response))


def length_and_ends(response, gold):
    return float(len(response) == len(gold) > 0 and (response[0], response[-1]) == (gold[0], gold[-1]))


NUMBERS = [Case("One?", "42"), Case("Another?", "1379")]


@pytest.mark.parametrize(
    ("grade", "said"),
    [
        (digits_only, "'4.2'"),
        (unsigned, "'-42'"),
        (begins_with_gold, "'421'"),
        (ends_with_gold, "'142'"),
        (begins_gold, "'4'"),
        (ends_gold, "'2'"),
        (length_and_ends, "'1479'"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_grader_of_parts_of_an_answer_is_found(grade, said):
    found = verifier(grade, NUMBERS)
    assert found.verdict is Verdict.DISAGREES and "a wrong answer" in found.findings[0]
    every = [line for line in found.findings if line.startswith("a wrong answer")]
    assert any(f"a wrong answer: {said} against" in line for line in every), every


def boxes(text):
    return re.findall(r"\\boxed\{([^{}]*)\}", text)


@pytest.mark.parametrize(
    "grade",
    [
        lambda response, gold: float(boxes(response)[:1] == [gold] != [""]),
        lambda response, gold: float(gold != "" and gold in boxes(response)),
        lambda response, gold: float(gold != "" and any(made.startswith(gold) for made in boxes(response)[-1:])),
    ],
    ids=["first", "any", "last begins with gold"],
)
def test_a_grader_of_the_wrong_box_is_found(grade):
    assert verifier(grade, NUMBERS, write=lambda answer: f"\\boxed{{{answer}}}").verdict is Verdict.DISAGREES


def strict(solution_str, ground_truth):
    """Read the number behind the last hashes, as a grader of grade-school mathematics does."""
    found = re.findall(r"#### (-?[0-9.,]+)", solution_str)
    return float(found != [] and found[-1].replace(",", "") == ground_truth)


def last_number(solution_str, ground_truth):
    found = [made for made in re.findall(r"(-?[0-9.,]+)", solution_str) if made not in ("", ".")]
    return float(found != [] and found[-1] == ground_truth)


def letter(response, gold):
    return float(response.strip().upper() == gold.upper() != "")


@pytest.mark.parametrize(
    ("grade", "cases", "write"),
    [
        (strict, NUMBERS, lambda answer: f"#### {answer}"),
        (last_number, NUMBERS, lambda answer: f"The answer is {answer}"),
        (letter, [Case("Which?", "B"), Case("And which?", "D")], None),
        (lambda response, gold: float(boxes(response)[-1:] == [gold] != [""]), NUMBERS, lambda a: f"\\boxed{{{a}}}"),
    ],
    ids=["strict", "last number", "letter", "last box"],
)
def test_graders_in_use_hold(grade, cases, write):
    found = verifier(grade, cases, write=write)
    assert found.verdict is Verdict.HOLDS, found


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
        (lambda response, gold: "yes", CASES, "scores nothing: it returned str; it must return one number"),
        (lambda response, gold: "1", CASES, "it returned str; it must return one number"),
        (lambda response, gold: {}, CASES, "it returned no number"),
        (lambda response, gold: 1 / 0, CASES, "ZeroDivisionError"),
        (bare, [], "no case"),
    ],
)
def test_what_cannot_be_audited_says_why(grade, cases, reason):
    found = verifier(grade, cases)
    assert found.verdict is Verdict.COULD_NOT_RUN and reason in found.detail


def one_edit_away(text, changed):
    """Whether one character was replaced, put in or left out."""
    if len(text) == len(changed):
        return sum(a != b for a, b in zip(text, changed, strict=True)) == 1
    long, short = sorted((text, changed), key=len, reverse=True)
    return any(long[:place] + long[place + 1 :] == short for place in range(len(long)))


@pytest.mark.parametrize("gold", ["42", "1379", "-0.50", "1/2", "0", "007", "Paris", "3*x-1*y+13=0", "B"])
def test_every_corruption_is_one_edit_and_another_answer(gold):
    made = corrupted(gold)
    assert made and all(one_edit_away(gold, answer) for answer in made), made
    assert len(set(made)) == len(made)
    if re.fullmatch(r"-?[0-9.]+", gold):
        assert all(float(answer) != float(gold) for answer in made), "0 is not -0, and 0.50 not 0.5"
    places = [place for place, character in enumerate(gold) if character.isdigit()]
    for place in places:
        assert any(a[:place] + a[place + 1 :] == gold[:place] + gold[place + 1 :] for a in made if len(a) == len(gold))


def test_corruption_changes_what_matters():
    assert set(corrupted("42")) == {"52", "43", "421", "142", "-42", "4.2", "4", "2"}
    assert set(corrupted("-9")) == {"-0", "-91", "9"}
    assert set(corrupted("0.5")) == {"1.5", "0.6", "0.51", "10.5", "-0.5", "0."}  # and not .5, which is as much
    assert corrupted("-x/2+3/4") == ["-x/3+3/4", "-x/2+4/4", "-x/2+3/5", "-x/2+3/41"]
    assert corrupted("Paris") == ["Parit", "Parist", "QParis", "Pari", "aris"]
    assert corrupted("B") == ["C", "BC", "CB"]
    assert corrupted("é!") == []


def test_what_cannot_be_stated_is_no_verdict():
    for write, reason in [
        (lambda answer: 1 / 0, "the way to state an answer raised ZeroDivisionError"),
        (lambda answer: None, "made NoneType of '42'"),
    ]:
        found = verifier(from_text, CASES, write=write)
        assert found.verdict is Verdict.COULD_NOT_RUN and reason in found.detail


def test_scores_are_read_from_what_graders_return():
    assert [score_of(made) for made in (True, 0, 0.5, None)] == [1.0, 0.0, 0.5, None]
    assert score_of(Outcome(None, "timeout")) is None
    assert score_of({"score": 1, "why": "same"}) == 1.0
