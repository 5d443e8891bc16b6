"""I9: does a grader score right answers 1 and everything else 0, whatever it is handed?

A grader and a few questions with their gold answers are enough: what else it is asked is made from these. It runs in a
process that is killed when it takes too long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay.audit.check import Check, SubjectError, answers, verdict_of
from assay.audit.invariants.byname import call_by_name, parameters_of
from assay.audit.invariants.findings import few
from assay.audit.invariants.killable import Ending, run_each
from assay.audit.invariants.probes import Case, Probe, probes_of
from assay.audit.invariants.readings import number_of
from assay.types import Outcome

WHAT = "the grader"


@answers("I9")
def verifier(
    grade: Callable[..., Any],
    cases: Sequence[Case],
    *,
    write: Callable[[str], str] | None = None,
    last_counts: bool = False,
    right_at_least: float = 1.0,
    wrong_at_most: float = 0.0,
    seconds: float = 5.0,
) -> Check:
    """Check a grader on the gold answers, and on what is made from them.

    Right: the gold answer, its equivalents, and the gold answer after reasoning, before long text, or after a tool was
    wrong. Wrong: the gold answer with a digit, sign, point or letter changed, added or left out, other questions'
    answers (unless listed as right), nothing, a list of answers with the gold one in it, the gold answer stated and
    then another, or said by a tool only; and any answer at all where the gold answer cannot be read. Nothing may
    raise, hang, or end the process.

    Args:
        grade: called by parameter name from ``question``, ``response``, ``gold`` (or ``prompt``, ``completion`` or
            ``solution_str``, ``ground_truth``), and for whole conversations ``messages`` (role and content) or
            ``tokens``, ``attention_mask``, ``response_mask``; returns a score, a truth value, None for unscorable,
            an :class:`~assay.types.Outcome`, or a mapping with ``"score"``.
        cases: at least one.
        write: from an answer to how a response states it, such as ``lambda answer: f"#### {answer}"``. Without it the
            grader gets bare answers, and there is no text around them.
        last_counts: whether a response that states another answer and then the gold one must score as right; unless
            it is said, either score will do.
        right_at_least: lowest score that says right.
        wrong_at_most: highest score that says wrong; None is no score, and so below it.
        seconds: for one answer.
    """
    _usable(cases)
    probes = [probe for case in cases for probe in probes_of(case, cases, write, last_counts=last_counts)]
    if not {"gold", "ground_truth"} & set(parameters_of(WHAT, grade, probes[0].offered())):
        probes = [probe for probe in probes if probe.gold == probe.case.gold]  # it judges by the question alone
    endings = run_each(lambda probe: score_of(call_by_name(WHAT, grade, probe.offered())), probes, seconds=seconds)
    if all(ending.how != "returned" for ending in endings):
        raise SubjectError(f"{WHAT} scores nothing: {endings[0].why}")
    found: dict[str, list[str]] = {}
    for probe, ending in zip(probes, endings, strict=True):
        found.setdefault(probe.what, []).append(_finding(probe, ending, right_at_least, wrong_at_most))
    return verdict_of(
        "I9",
        "gold and equivalent answers score as right; corrupted, misplaced, listed and hostile ones do not; none stalls",
        [line for lines in found.values() for line in few(lines, 2)],
        exactness=f"{len(probes)} responses to {len(cases)} question{'s' * (len(cases) > 1)}",
        remedy="compare the whole final answer with the gold one, and give no score where either cannot be read",
    )


def _usable(cases: Sequence[Any]) -> None:
    """Raise a :class:`SubjectError` unless there are cases, and they hold texts."""
    if not cases:
        raise SubjectError("no case: give at least one question with its gold answer")
    if strange := [case for case in cases if not isinstance(case, Case)]:
        raise SubjectError(f"a case is {type(strange[0]).__name__}; give each question as a Case with its gold answer")
    for text in (text for case in cases for text in (case.question, case.gold, *case.right, *case.wrong)):
        if not isinstance(text, str):
            raise SubjectError(f"a question or an answer is {type(text).__name__}; it must be a text")


def score_of(made: Any) -> float | None:
    """Return the score in what a grader returned, None where it gave none.

    Raises:
        SubjectError: there is no number in it.
    """
    made = made.score if isinstance(made, Outcome) else made
    made = made.get("score", math.nan) if isinstance(made, Mapping) else made
    if made is None:
        return None
    score = number_of("it", made)
    if math.isnan(score):
        raise SubjectError("it returned no number as its score")
    return score


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
