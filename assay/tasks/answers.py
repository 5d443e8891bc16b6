"""The graders that compare a response with the answer of its row: by text, and as mathematics.

A response without an answer scores 0 and is counted as unparseable. A gold answer that cannot be read raises: the
response then has no score, and certainly not that of a right one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from assay.errors import ConfigError, InputError
from assay.tasks.submission import NO_ANSWER, RIGHT, WRONG, Mark, Submission

SMALL = 0.1
"""Math-Verify compares numbers after rounding to 6 decimals, so below this size they are compared again."""
DIGITS = 30
"""Significant digits of that comparison."""
RELATIVE = 1e-5
"""How far apart small numbers may be where one of them is a decimal fraction."""
EXACT = 1e-25
"""How far apart small exact numbers may be: rounding only."""
_FINAL = re.compile(r"####[^\S\n]*(\S[^\n]*)")
_DELIMITED = re.compile(r"\$.+\$|\\boxed|\\\(|\\\[", re.DOTALL)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_TEXT = re.compile(r"\\(?:text|mathrm)\s*\{[^{}]*\}")


def gold_of(submission: Submission) -> str:
    """Return the right answer.

    Raises:
        InputError: the row has none.
    """
    if submission.answer is None or not submission.answer.strip():
        raise InputError("the row has no answer to compare with")
    return submission.answer.strip()


def exact(submission: Submission) -> Mark:
    """Grade by text: right when the response equals the answer, both without the white space around them."""
    gold, text = gold_of(submission), submission.text.strip()
    if not text:
        return NO_ANSWER
    return RIGHT if text == gold else WRONG


def maths() -> Callable[[Submission], Mark]:
    """Return the grader that compares as mathematics, by Math-Verify.

    The answer is what follows the last ``####`` where there is one (the whole text is searched for it). A text that is
    one bare expression is read as a whole; in prose, Math-Verify chooses what to read. Its own time limits are off:
    they hang and cancel the caller's alarm; the process that this runs in is killed instead.

    Raises:
        ConfigError: Math-Verify is not installed.
    """
    try:
        from math_verify import parse, verify
    except ImportError as error:
        raise ConfigError("reward 'maths' needs math-verify: pip install 'assay[tasks]'") from error

    def read(text: str) -> list[Any]:
        parsed: list[Any] = parse(_stated(text), parsing_timeout=None)
        return parsed

    def grade(submission: Submission) -> Mark:
        gold = read(gold_of(submission))
        if not gold:
            raise InputError(f"the answer {submission.answer!r} cannot be read as mathematics")
        answer = read(submission.text) if submission.text.strip() else []
        if not answer:
            return NO_ANSWER
        right = verify(gold, answer, timeout_seconds=None) and not _differ_in_the_small(gold[0], answer[0])
        return RIGHT if right else WRONG

    return grade


def _stated(text: str) -> str:
    """Return the part of a text that states the answer, delimited as mathematics where it is nothing else."""
    finals = _FINAL.findall(text)
    stated = (finals[-1] if finals else text).strip()
    bare = not _DELIMITED.search(stated) and not _WORD.search(_TEXT.sub("", stated))
    return f"${stated.strip('$')}$" if bare else stated


def _differ_in_the_small(gold: Any, answer: Any) -> bool:
    """Return whether two numbers that agree after rounding to 6 decimals do so only because both are small."""
    if not (getattr(gold, "is_number", False) and getattr(answer, "is_number", False)):
        return False
    from sympy import Float, N

    exact_gold, exact_answer = gold.doit(), answer.doit()  # a percentage comes unevaluated
    size = max(abs(N(exact_gold, DIGITS)), abs(N(exact_answer, DIGITS)))
    apart = RELATIVE if gold.has(Float) or answer.has(Float) else EXACT
    return bool(size < SMALL and abs(N(exact_gold - exact_answer, DIGITS)) > apart * size)
