"""The self-test passes sound graders, and refuses the public kinds of unsound ones with a witness."""

import re

import pytest

from assay.errors import ConfigError
from assay.tasks.grading import WorkerGrader
from assay.tasks.selftest import corrupt, require, self_test
from assay.types import Outcome, Response, TextProblem
from assay.verdicts import Verdict

PROBLEMS = [TextProblem(number, f"{number} plus 10 is", str(number + 10)) for number in (3, 20, 103, 7)]
NAMES = ["gold", "corrupted", "empty", "other"]


def grader_of(score):
    def grade(problems, responses):
        scores = [score(problem.answer, response.text) for problem, response in zip(problems, responses, strict=True)]
        return [Outcome(s, "unparseable" if s is None else "right" if s >= 1 else "wrong") for s in scores]

    return grade


def disagreeing(tested):
    return [claim.name for claim in tested.claims if claim.verdict is Verdict.DISAGREES]


def test_sound_graders_pass():
    for reward in ("exact", "maths"):
        with WorkerGrader(reward) as grader:
            tested = self_test(grader, PROBLEMS)
        assert tested.holds and tested.problems == 4 and [claim.name for claim in tested.claims] == NAMES
        require(tested)
        assert "holds  gold: all 4 score 1" in str(tested)


@pytest.mark.parametrize(
    ("score", "names"),
    [
        (lambda gold, text: 1.0, ["corrupted", "empty", "other"]),
        (lambda gold, text: 0.0, ["gold"]),  # a parser that was never passed on
        (lambda gold, text: 1.0 if text else None, ["corrupted", "other"]),
        (lambda gold, text: float(gold == text) or (0.1 if text else 0.0), ["corrupted", "other"]),
        (lambda gold, text: float(gold == text or not text), ["empty"]),
        (lambda gold, text: float(bool(text) and text[0] == gold[0]), ["corrupted", "other"]),
        (lambda gold, text: float(gold == text) if gold != "13" else None, ["gold"]),  # one gold it cannot read
        (lambda gold, text: float(gold == text) - 1e-6, ["gold"]),
    ],
)
def test_unsound_graders_are_refused(score, names):
    tested = self_test(grader_of(score), PROBLEMS)
    assert disagreeing(tested) == names
    with pytest.raises(ConfigError, match=f"the reward fails its self-test, {names[0]} answers: problem"):
        require(tested)


def test_no_score_is_no_credit_and_more_than_one_is_right():
    require(self_test(grader_of(lambda gold, text: 2.0 if gold == text else None), PROBLEMS))
    require(self_test(grader_of(lambda gold, text: 1.0 if gold == text else -1.0), PROBLEMS))


def test_the_witness_shows_prompt_answer_and_score():
    tested = self_test(grader_of(lambda gold, text: 0.5), PROBLEMS[:1])
    with pytest.raises(ConfigError, match=re.escape("problem 3 '3 plus 10 is': '13' scores 0.5 (wrong)")):
        require(tested)


def test_a_grader_that_fails_on_the_empty_response_is_caught():
    """One that divides by the length of the response."""

    def grade(problems, responses):
        each = zip(problems, responses, strict=True)
        return [Outcome(float(p.answer == r.text), "right") if r.text else Outcome(None, "error") for p, r in each]

    assert "empty" in disagreeing(self_test(grade, PROBLEMS))


def test_problems_without_an_answer_could_not_be_tried():
    problems = [TextProblem(0, "write a poem"), TextProblem(1, "write a song")]
    tested = self_test(grader_of(lambda gold, text: 0.0), problems)
    assert [claim.verdict for claim in tested.claims] == [
        Verdict.COULD_NOT_RUN,
        Verdict.COULD_NOT_RUN,
        Verdict.HOLDS,
        Verdict.COULD_NOT_RUN,
    ]
    require(tested)
    assert self_test(grader_of(lambda gold, text: 1.0), []).verdict is Verdict.COULD_NOT_RUN


def test_other_answers_have_another_value():
    """1/2, 0.5 and .50 are one value: none of them is another's wrong answer."""
    asked = []

    def grade(problems, responses):
        asked.extend((problem.answer, response.text) for problem, response in zip(problems, responses, strict=True))
        return [Outcome(0.0, "wrong")] * len(problems)

    answers = ["1/2", "0.5", ".50", "1,000", "1000", "Yes", "yes "]
    self_test(grade, [TextProblem(at, "p", answer) for at, answer in enumerate(answers)])
    other = asked[3 * len(answers) :]
    value = {"1/2": 0.5, "0.5": 0.5, ".50": 0.5, "1,000": 1000, "1000": 1000, "Yes": "y", "yes ": "y"}
    assert [answer for answer, _ in other] == answers and all(value[a] != value[b] for a, b in other)
    asked.clear()
    self_test(grade, [TextProblem(0, "p", "1/2"), TextProblem(1, "p", "0.5")])
    assert len(asked) == 3 * 2


def test_graders_that_read_tokens_get_them():
    seen = []

    def grade(problems, responses):
        seen.extend(responses)
        return [Outcome(0.0, "wrong")] * len(problems)

    self_test(grade, PROBLEMS[:1], encode=lambda text: [len(text)])
    assert seen == [Response((2,), "13"), Response((2,), "14"), Response((0,), "")]


def test_a_corrupted_answer_is_another_one_of_the_same_form():
    cases = {"13": "14", "9": "0", "-0.5": "-0.6", "1/2": "1/3", "A": "B", "yes": "yet", "x^2+y": "x^3+y", "#": "#x"}
    assert {answer: corrupt(answer) for answer in cases} == cases
    assert corrupt("work 1\n#### 1,239") == "work 1\n#### 1,230"
