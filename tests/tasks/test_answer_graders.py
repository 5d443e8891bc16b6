"""The built-in graders: by text and as mathematics, with the public traps of Math-Verify."""

import signal

import pytest

from assay.errors import InputError
from assay.tasks.answers import exact, maths
from assay.tasks.submission import Submission

RIGHT, WRONG, NO_ANSWER = (1.0, "right"), (0.0, "wrong"), (0.0, "unparseable")
CHANCE = "and then a lot more text with the numbers 3 and 4 in it. " * 20


def said(answer, text):
    return Submission("p", answer, {}, text, ())


@pytest.mark.parametrize(
    ("answer", "text", "mark"),
    [
        ("13", "13", RIGHT),
        (" 13\n", "\t13 ", RIGHT),
        ("13", "13.", WRONG),
        ("13", "1 3", WRONG),
        ("13", "the answer is 13", WRONG),
        ("13", "113", WRONG),
        ("a b", "a  b", WRONG),
        ("13", "", NO_ANSWER),
        ("13", " \n", NO_ANSWER),
    ],
)
def test_exact_compares_the_text_without_the_white_space_around_it(answer, text, mark):
    assert exact(said(answer, text)) == mark


@pytest.mark.parametrize("grade", [exact, maths()])
@pytest.mark.parametrize("answer", [None, "", "  "])
def test_a_row_without_an_answer_has_no_score(grade, answer):
    with pytest.raises(InputError, match="no answer"):
        grade(said(answer, answer or ""))


def test_a_gold_answer_that_cannot_be_read_never_rewards():
    """A copied open-r1 reward gives 1.0 here, to anything."""
    for text in ("yes", "no", "7"):
        with pytest.raises(InputError, match="'yes' cannot be read as mathematics"):
            maths()(said("yes", text))


FALSE_POSITIVES = [
    ("$1/2004!$", "$1/2006!$"),  # equal after rounding to 6 decimals
    ("2^{-99}", "2^{-98}"),
    ("0.0000001", "0.0000002"),
    ("0", "0.0000001"),
    ("$n=2,3,4$", "$n=1,2,3$"),
    ("$\\pm 2021$", "$2021$"),
    ("12:00", "1:00"),
    ("3*x-1*y+13=0", "3x+4y+14=0"),  # two lines, both read as their last constant
    ("1-1/e", "1+1/e"),  # both read as 1
    ("1", "1-1/e"),
    ("\\sqrt{2}", "\\sqrt{3}"),
    ("[0,1)", "[0,1]"),
    ("7", "-7"),
    ("7", "1, 2, 3, 7"),  # a list with the right one in it
    ("7", "\\boxed{1,7}"),
    ("7", "$7$ or $8$"),
    ("7", "7 or 8"),
    ("7", "7\n8"),
    ("7", "\\boxed{7} \\boxed{8}"),
    ("7", "#### 7\n#### 8"),
    ("1/3", "0.33"),
]
FALSE_NEGATIVES = [
    ("72", "72"),
    ("72", " 72.\n"),
    ("72", "70 + 2 = 72"),
    ("72", "so there are 72 apples"),
    ("72", "\\boxed{72}"),
    ("\\text{13}", "13"),
    ("13", "\\text{13}"),
    ("\\sqrt{2}", "$\\sqrt{2}$"),
    ("\\frac{1}{2}", "0.5"),
    ("\\frac{1}{2}", "1/2"),
    ("x^2+1", "$1 + x^2$"),
    ("$2x+4y-3=0$", "$y=-x/2+3/4$"),
    ("1,000", "1000"),
    ("50%", "0.5"),
    ("0.05", "5%"),
    ("0.05", "1/20"),
    ("2^{-99}", "1/2^{99}"),
    ("10^{-9}", "0.000000001"),
    ("x=3", "3"),
    ("(1,2)", "$(1, 2)$"),
    ("$18", "18 dollars"),
    ("He sells 9 of 16.\n#### 1,234", "1234"),
    ("72", f"#### 72\n{CHANCE}"),  # a right answer that is followed by more than 300 characters
    ("72", f"{CHANCE}\n#### 72"),
]


@pytest.mark.parametrize(("gold", "text"), FALSE_POSITIVES)
def test_maths_that_is_not_equal_is_wrong(gold, text):
    assert maths()(said(gold, text)) == WRONG
    assert maths()(said(gold, gold)) == RIGHT


@pytest.mark.parametrize(("gold", "text"), FALSE_NEGATIVES)
def test_maths_that_is_equal_is_right(gold, text):
    assert maths()(said(gold, text)) == RIGHT


@pytest.mark.parametrize("text", ["", " ", "I do not know", "\\"])
def test_a_response_without_mathematics_is_unparseable(text):
    assert maths()(said("72", text)) == NO_ANSWER


def test_math_verify_alone_passes_what_we_refuse():
    """The traps are live in the installed version: that is why the text is read as a whole and compared again."""
    from math_verify import parse, verify

    def alone(gold, text):
        return verify(parse(gold), parse(text))

    passed = [(gold, text) for gold, text in FALSE_POSITIVES if alone(gold, text)]
    assert {("$1/2004!$", "$1/2006!$"), ("3*x-1*y+13=0", "3x+4y+14=0"), ("1-1/e", "1+1/e")} <= set(passed)


def test_an_alarm_that_is_set_stays_set():
    """Math-Verify's own time limit would cancel it."""
    signal.alarm(1000)
    maths()(said("72", "$72$"))
    assert signal.alarm(0) > 900


def test_gold_and_response_are_not_swapped():
    """Math-Verify is not symmetric: an equation answers for its value, and the comparison takes the gold one first."""
    assert maths()(said("1<x<2", "$(1,2)$")) == RIGHT
    assert maths()(said("(1,2)", "$1<x<2$")) == WRONG
