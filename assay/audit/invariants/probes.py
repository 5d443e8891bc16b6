"""What a grader is asked: everything that can be made from a few questions and their gold answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from assay.audit.check import SubjectError, foreign

HOSTILE = (
    "",
    " \n\t",
    "1/0",
    "nan",
    "-inf",
    "²",
    "\x00",
    "\\boxed{",
    "\\frac{1}{0}",
    "(" * 3000,
    "9" * 5000,
    "9**9**9**9",
    "1e999999999",
)
"""Answers that end or stall careless graders: nothing, no number, unbalanced, deeply nested, too large to compute."""
UNREADABLE_GOLD = ("", "\\frac{", "?")
"""Gold answers that no response can be compared with."""
FILLER = "That is the answer and nothing more needs to be said about it. " * 20
_PLAIN = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(/[0-9]*[1-9][0-9]*)?")
"""A decimal, or a ratio of two."""
Said = tuple[tuple[str, str], ...]
"""Who spoke (``"assistant"`` or ``"tool"``), and what."""


@dataclass(frozen=True)
class Case:
    """A question with its gold answer.

    Attributes:
        question: as it is asked.
        gold: the answer on file.
        right: other answers that are as right.
        wrong: answers that are not, beside those made from the gold answer.
    """

    question: str
    gold: str
    right: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True)
class Probe:
    """One thing a grader is asked: what was said, against which gold answer, and what must come of it.

    Attributes:
        what: the kind of probe, for messages.
        case: where it comes from.
        said: the conversation after the question.
        gold: the gold answer handed over.
        right: whether it must be scored as right.
        may_refuse: whether an error is an answer too.
    """

    what: str
    case: Case
    said: Said
    gold: str
    right: bool
    may_refuse: bool = False

    def offered(self) -> dict[str, Any]:
        """Return what a grader may ask for, by name; tokens are characters."""
        response = "".join(text for who, text in self.said if who == "assistant")
        texts = [(who == "assistant", ord(character)) for who, text in self.said for character in text]
        return {
            "question": self.case.question,
            "response": response,
            "gold": self.gold,
            "prompt": self.case.question,
            "completion": response,
            "solution_str": response,
            "ground_truth": self.gold,
            "messages": [{"role": who, "content": text} for who, text in self.said],
            "tokens": [token for _, token in texts],
            "attention_mask": [1] * len(texts),
            "response_mask": [int(own) for own, _ in texts],
        }


def probes_of(
    case: Case, cases: Sequence[Case], write: Callable[[str], str] | None, *, last_counts: bool
) -> Iterator[Probe]:
    """Yield everything a grader is asked about one case.

    Args:
        case: the one.
        cases: all, whose other answers are wrong ones here.
        write: from an answer to how a response states it; None where graders get bare answers.
        last_counts: whether the last of several stated answers is the answer.

    Raises:
        SubjectError: ``write`` raises, or returns no text.
    """
    same = {case.gold, *case.right}
    others = [answer for other in cases for answer in (other.gold, *other.right) if other is not case]
    wrong = [answer for answer in dict.fromkeys([*case.wrong, *corrupted(case.gold), *others]) if answer not in same]

    def state(answer: str) -> str:
        return _written(write, answer)

    yield Probe("the gold answer", case, _alone(state(case.gold)), case.gold, True)
    for answer in case.right:
        yield Probe("an equivalent answer", case, _alone(state(answer)), case.gold, True)
    for answer in wrong:
        yield Probe("a wrong answer", case, _alone(state(answer)), case.gold, False)
    for answer in (hostile for hostile in HOSTILE if hostile not in same):
        yield Probe("a hostile answer", case, _alone(state(answer)), case.gold, False)
    for gold in UNREADABLE_GOLD:
        yield Probe("an unreadable gold answer", case, _alone(state(case.gold)), gold, False, may_refuse=True)
    if wrong:
        first, gold, last = state(wrong[0]), state(case.gold), state(wrong[-1])
        yield from _several(case, first, gold, last, bare=write is None)
        yield from () if write is None else _in_text(case, first, gold, last_counts=last_counts)


def corrupted(gold: str) -> list[str]:
    """Return answers that differ from a gold one in characters that matter.

    Each digit in turn is replaced by the next one, or where there is none the last letter; a digit or letter is added
    at either end, where one stands there. Of a plain number also the sign, the decimal point, and the first and the
    last digit are changed, added or left out. What has the same value is left out.
    """
    digits = [place for place, character in enumerate(gold) if character in "0123456789"]
    letters = [place for place, character in enumerate(gold) if character.isascii() and character.isalpha()]
    made = [gold[:place] + _next(gold[place]) + gold[place + 1 :] for place in digits or letters[-1:]]
    ends = digits or letters
    made += [gold + _beside(gold[-1])] if ends and ends[-1] == len(gold) - 1 else []
    made += [_beside(gold[0]) + gold] if ends and ends[0] == 0 else []
    if _PLAIN.fullmatch(gold):
        made.append(gold[1:] if gold[0] == "-" else "-" + gold.removeprefix("+"))
        made += [re.sub(r"^([+-]?[0-9])([0-9])", r"\1.\2", gold)] if "." not in gold and "/" not in gold else []
    if len(ends) > 1 and (_PLAIN.fullmatch(gold) or len(letters) == len(gold)):
        made += [gold[: ends[-1]] + gold[ends[-1] + 1 :], gold[: ends[0]] + gold[ends[0] + 1 :]]
    value = _value(gold)
    changed = [answer for answer in dict.fromkeys(made) if answer not in ("", gold)]
    return [answer for answer in changed if value is None or _value(answer) != value]


def _value(text: str) -> Fraction | None:
    """Return the value of a plain number; None for any other text."""
    if not _PLAIN.fullmatch(text):
        return None
    top, slash, bottom = text.partition("/")
    return Fraction(top) / Fraction(bottom) if slash else Fraction(top)


def _next(character: str) -> str:
    if character.isdigit():
        return str((int(character) + 1) % 10)
    return {"z": "a", "Z": "A"}.get(character, chr(ord(character) + 1))


def _beside(character: str) -> str:
    """Return what is added next to a character: another letter, or a digit that is not 0, which may change nothing."""
    return "1" if character.isdigit() else _next(character)


def _written(write: Callable[[str], str] | None, answer: str) -> str:
    text = answer if write is None else foreign("the way to state an answer", write, answer)
    if not isinstance(text, str):
        raise SubjectError(f"the way to state an answer made {type(text).__name__} of {answer[:20]!r}; need a text")
    return text


def _alone(text: str) -> Said:
    return (("assistant", text),)


def _several(case: Case, first: str, gold: str, last: str, *, bare: bool) -> Iterator[Probe]:
    """Yield the probes in which the gold answer stands among others, or somebody else says it."""
    between = ", " if bare else "\n"
    for listed in ((first, gold, last), (gold, last)):
        yield Probe("a list of answers", case, _alone(between.join(listed)), case.gold, False)
    before = ("assistant", "" if bare else "Let me look.\n")
    tool = (before, ("tool", f"{gold}\n"), ("assistant", first))
    yield Probe("a tool says the gold answer, the model another", case, tool, case.gold, False)
    tool = (before, ("tool", f"{gold}\n"), ("assistant", "" if bare else FILLER))
    yield Probe("a tool says the gold answer, the model none", case, tool, case.gold, False)


def _in_text(case: Case, other: str, gold: str, *, last_counts: bool) -> Iterator[Probe]:
    """Yield the probes in which there is text around the answer."""
    texts = {
        "the gold answer after reasoning": (f"Let me think step by step.\n{gold}", True),
        "the gold answer and then much text": (f"{gold}\n{FILLER}", True),
        "the gold answer given up for another": (f"At first I took it to be {case.gold}. It is not.\n{other}", False),
        "no answer": (FILLER, False),
    }
    if last_counts:
        texts["another answer and then the gold one"] = (f"{other}\n{gold}", True)
    for what, (text, right) in texts.items():
        yield Probe(what, case, _alone(text), case.gold, right)
    tool = (("assistant", "Let me look.\n"), ("tool", f"{other}\n"), ("assistant", gold))
    yield Probe("a tool says another answer, the model the gold one", case, tool, case.gold, True)
