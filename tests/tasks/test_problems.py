"""A row becomes a problem, or is named with what is wrong in it."""

import decimal
import re

import numpy as np
import pytest

from assay.errors import ConfigError
from assay.tasks.problems import problem_of
from assay.tasks.rows import Row
from assay.types import TextProblem

CHAT = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "2+2?"}]


def problem(values, **columns):
    return problem_of(7, Row("d.jsonl line 8", values), **columns)


def test_prompt_and_answer_leave_the_columns_and_everything_else_passes():
    other = {"level": 3, "meta": {"a": [1]}, "none": None}
    assert problem({"prompt": "p", "answer": "a", **other}) == TextProblem(7, "p", "a", other)
    assert problem({"prompt": "p"}) == TextProblem(7, "p", None, {})
    assert problem({"prompt": "p", "answer": None}) == TextProblem(7, "p", None, {})
    assert problem({"prompt": CHAT}).prompt == tuple(CHAT)
    assert problem({"prompt": [{**CHAT[1], "tool_calls": None}]}).prompt == (CHAT[1],)


@pytest.mark.parametrize(
    ("value", "text"),
    [(42, "42"), (-0.5, "-0.5"), (np.int64(3), "3"), (np.float64(0.25), "0.25"), (decimal.Decimal("1.10"), "1.10")],
)
def test_a_number_becomes_its_text_and_reward_functions_still_get_the_number(value, text):
    made = problem({"prompt": "p", "answer": value})
    assert made.answer == text and made.columns == {"answer": value}


def test_other_columns_can_be_the_prompt_and_the_answer():
    row = {"question": "q", "solution": "s", "answer": "long", "reward_model": {"ground_truth": "42"}}
    made = problem(row, prompt_column="question", answer_column="solution")
    assert made == TextProblem(7, "q", "s", {key: row[key] for key in ("solution", "answer", "reward_model")})
    assert problem(row, prompt_column="question", answer_column="reward_model.ground_truth").answer == "42"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"question": "p"}, "no column 'prompt'; it has 'question'"),
        ({"prompt": ""}, "prompt is empty ('')"),
        ({"prompt": " \n"}, "prompt is empty"),
        ({"prompt": None}, "prompt is None (NoneType); expected text"),
        ({"prompt": 3}, "prompt is 3 (int); expected text"),
        ({"prompt": []}, "prompt is empty; give it at least one message"),
        ({"prompt": ["hello"]}, "prompt message 0 is 'hello'"),
        ({"prompt": [{"role": "user"}]}, "prompt message 0 is {'role': 'user'}; expected role and content"),
        ({"prompt": [*CHAT, {"role": "human", "content": "x"}]}, "prompt message 2 has role 'human'"),
        ({"prompt": [{"role": "user", "content": ""}]}, "prompt message 0 is empty"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "expected text"),
        ({"prompt": "\ud800"}, "half a character"),
        ({"prompt": "p", "answer": "\udfff"}, "half a character"),
        ({"prompt": "p", "answer": ""}, "answer is empty"),
        ({"prompt": "p", "answer": True}, "answer is True (bool)"),
        ({"prompt": "p", "answer": [1]}, "answer is [1] (list)"),
        ({"prompt": "p", "answer": {"a": 1}}, "(dict)"),
        ({"prompt": "p", "answer": float("nan")}, "answer is nan (float)"),
        ({"prompt": "p", "answer": float("inf")}, "answer is inf (float)"),
    ],
)
def test_what_is_no_problem_is_named_by_file_line_and_column(values, words):
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        problem(values)
    assert str(caught.value).startswith("data d.jsonl line 8:")


def test_a_column_that_was_asked_for_must_exist():
    with pytest.raises(ConfigError, match="no column 'solution'"):
        problem({"prompt": "p", "answer": "a"}, answer_column="solution")
    with pytest.raises(ConfigError, match="no column 'a.b'"):
        problem({"prompt": "p", "a": {"c": 1}}, answer_column="a.b")
