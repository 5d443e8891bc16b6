"""I9: does a grader score right answers 1 and everything else 0, whatever it is handed?

A grader and a few questions with their gold answers are enough: what else it is asked is made from these. It runs in a
process that is killed when it takes too long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.audit.check import Check, SubjectError, answers, verdict_of
from assay.audit.invariants.byname import call_by_name, parameters_of
from assay.audit.invariants.findings import few
from assay.audit.invariants.killable import Ending, run_each
from assay.types import Outcome

WHAT = "the grader"
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
FILLER = "That is the answer, and nothing more needs to be said about it. " * 20


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
        said: the conversation after the question: who spoke (``"assistant"`` or ``"tool"``), and what.
        gold: the gold answer handed over.
        right: whether it must be scored as right.
        may_refuse: whether an error is an answer too.
    """

    what: str
    case: Case
    said: tuple[tuple[str, str], ...]
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


@answers("I9")
def verifier(
    grade: Callable[..., Any],
    cases: Sequence[Case],
    *,
    write: Callable[[str], str] | None = None,
    right_at_least: float = 1.0,
    wrong_at_most: float = 0.0,
    seconds: float = 5.0,
) -> Check:
    """Check a grader on the gold answers, and on what is made from them.

    Right: the gold answer, its equivalents, and the gold answer after reasoning, before long text, or after a tool was
    wrong. Wrong: the gold answer with a digit or letter changed, other questions' answers (unless listed as right),
    nothing, a list of answers with the gold one in it, the gold answer given up for another, or said by a tool only;
    and any answer at all where the gold answer cannot be read. Nothing may raise, hang, or end the process.

    Args:
        grade: called by parameter name from ``question``, ``response``, ``gold`` (or ``prompt``, ``completion`` or
            ``solution_str``, ``ground_truth``), and for whole conversations ``messages`` (role and content) or
            ``tokens``, ``attention_mask``, ``response_mask``; returns a score, a truth value, None for unscorable,
            an :class:`~assay.types.Outcome`, or a mapping with ``"score"``.
        cases: at least one.
        write: from an answer to how a response states it, such as ``lambda answer: f"#### {answer}"``. Without it the
            grader gets bare answers, and there is no text around them.
        right_at_least: lowest score that says right.
        wrong_at_most: highest score that says wrong; None is no score, and so below it.
        seconds: for one answer.
    """
    if not cases:
        raise SubjectError("no case: give at least one question with its gold answer")
    probes = [probe for case in cases for probe in _probes(case, cases, write)]
    if not {"gold", "ground_truth"} & set(parameters_of(WHAT, grade, probes[0].offered())):
        probes = [probe for probe in probes if probe.gold == probe.case.gold]  # it judges by the question alone
    endings = run_each(lambda probe: score_of(call_by_name(WHAT, grade, probe.offered())), probes, seconds=seconds)
    if all(ending.how != "returned" for ending in endings):
        raise SubjectError(f"{WHAT} scores nothing: {endings[0].why}")
    pairs = zip(probes, endings, strict=True)
    found = [_finding(probe, ending, right_at_least, wrong_at_most) for probe, ending in pairs]
    return verdict_of(
        "I9",
        "gold and equivalent answers score as right; corrupted, misplaced, listed and hostile ones do not; none stalls",
        few(found),
        exactness=f"{len(probes)} responses to {len(cases)} question{'s' * (len(cases) > 1)}",
        remedy="compare the whole final answer with the gold one, and give no score where either cannot be read",
    )


def score_of(made: Any) -> float | None:
    """Return the score in what a grader returned, None where it gave none.

    Raises:
        SubjectError: there is no number in it.
    """
    made = made.score if isinstance(made, Outcome) else made
    made = made.get("score", math.nan) if isinstance(made, Mapping) else made
    if made is None:
        return None
    try:
        score = float(made)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SubjectError(f"it returned {type(made).__name__}, which is no score") from error
    if math.isnan(score):
        raise SubjectError("it returned no number as its score")
    return score


def corrupted(gold: str) -> list[str]:
    """Return answers that differ from a gold one in a character that matters: its first or last digit, each
    replaced by the next one, or where it has none its last letter."""
    digits = [place for place, character in enumerate(gold) if character in "0123456789"]
    letters = [place for place, character in enumerate(gold) if character.isascii() and character.isalpha()]
    places = {digits[0], digits[-1]} if digits else set(letters[-1:])
    return [gold[:place] + _next(gold[place]) + gold[place + 1 :] for place in sorted(places)]


def _next(character: str) -> str:
    if character.isdigit():
        return str((int(character) + 1) % 10)
    return {"z": "a", "Z": "A"}.get(character, chr(ord(character) + 1))


def _probes(case: Case, cases: Sequence[Case], write: Callable[[str], str] | None) -> Iterator[Probe]:
    """Return everything a grader is asked about one case."""
    state = write or str
    same = {case.gold, *case.right}
    others = [answer for other in cases for answer in (other.gold, *other.right) if other is not case]
    wrong = [answer for answer in dict.fromkeys([*case.wrong, *corrupted(case.gold), *others]) if answer not in same]

    def says(text: str) -> tuple[tuple[str, str], ...]:
        return (("assistant", text),)

    yield Probe("the gold answer", case, says(state(case.gold)), case.gold, True)
    for answer in case.right:
        yield Probe("an equivalent answer", case, says(state(answer)), case.gold, True)
    for answer in wrong:
        yield Probe("a wrong answer", case, says(state(answer)), case.gold, False)
    for answer in (hostile for hostile in HOSTILE if hostile not in same):
        yield Probe("a hostile answer", case, says(state(answer)), case.gold, False)
    for gold in UNREADABLE_GOLD:
        yield Probe("an unreadable gold answer", case, says(state(case.gold)), gold, False, may_refuse=True)
    if wrong:
        yield from _around(case, state, wrong, bare=write is None)


def _around(case: Case, state: Callable[[str], str], wrong: list[str], *, bare: bool) -> Iterator[Probe]:
    """Return the probes in which the answer does not stand alone."""
    gold, other, last = state(case.gold), state(wrong[0]), state(wrong[-1])
    listed = (", " if bare else "\n").join((other, gold, last))
    yield Probe("a list of answers", case, (("assistant", listed),), case.gold, False)
    before = ("assistant", "" if bare else "Let me look.\n")
    tool = (before, ("tool", f"{gold}\n"), ("assistant", other))
    yield Probe("a tool says the gold answer, the model another", case, tool, case.gold, False)
    tool = (before, ("tool", f"{gold}\n"), ("assistant", "" if bare else FILLER))
    yield Probe("a tool says the gold answer, the model none", case, tool, case.gold, False)
    if bare:
        return
    texts = {
        "the gold answer after reasoning": (f"Let me think step by step.\n{gold}", True),
        "the gold answer and then much text": (f"{gold}\n{FILLER}", True),
        "the gold answer given up for another": (f"At first I took it to be {case.gold}. It is not.\n{other}", False),
        "no answer": (FILLER, False),
    }
    for what, (text, right) in texts.items():
        yield Probe(what, case, (("assistant", text),), case.gold, right)
    tool = (before, ("tool", f"{other}\n"), ("assistant", gold))
    yield Probe("a tool says another answer, the model the gold one", case, tool, case.gold, True)


def _finding(probe: Probe, ending: Ending, right_at_least: float, wrong_at_most: float) -> str:
    """Return what is wrong with how a grader answered a probe, or nothing."""
    where = f"{probe.what}: {_said(probe)} against gold {_short(probe.gold)}"
    if ending.how == "returned":
        score = ending.value
        if probe.right and (score is None or score < right_at_least):
            return f"{where} scores {'nothing' if score is None else f'{score:g}'}, and must score {right_at_least:g}"
        if not probe.right and score is not None and score > wrong_at_most:
            return f"{where} scores {score:g}, and must score at most {wrong_at_most:g}"
        return ""
    if ending.how == "raised" and probe.may_refuse:
        return ""
    return f"{where}: {ending.why}"


def _said(probe: Probe) -> str:
    """Return what was said, and by whom where that was not the model alone."""
    if all(who == "assistant" for who, _ in probe.said):
        return _short("".join(text for _, text in probe.said))
    return ", ".join(f"{who} {_short(text)}" for who, text in probe.said if text)


def _short(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= 80 else f"{shown[:50]}...{shown[-20:]} ({len(text)} characters)"
