"""The verifier's own test, before a model is trained on it: gold answers score 1, and what is not an answer scores 0.

A reward that passes everything, or nothing, still yields a curve; this is where it is caught.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from assay.errors import ConfigError
from assay.types import Grader, Outcome, Response, TextProblem
from assay.verdicts import Claim, Judged, Verdict

MOST_WITNESSES = 3
Case = tuple[TextProblem, str]
"""A problem, and what is said to it."""


@dataclass(frozen=True)
class SelfTest(Judged):
    """What a grader made of answers that are known.

    Attributes:
        claims: gold, corrupted, empty and other answers, in this order.
        problems: how many were tried.
    """

    claims: tuple[Claim, ...]
    problems: int

    def __str__(self) -> str:
        return "\n".join(map(str, self.claims))


def self_test(
    grader: Grader,
    problems: Sequence[TextProblem],
    *,
    encode: Callable[[str], Sequence[int]] = lambda text: (),
) -> SelfTest:
    """Ask a grader about answers that are known.

    A gold answer must be right: score 1, or more where a reward goes beyond it. Its last digit (or letter) changed, the
    empty response, and the answer of another problem must not score above 0; a reward function may give them None.

    Args:
        grader: what is tested.
        problems: to try; those without an answer can only be asked about the empty response.
        encode: from a text to the tokens of a response, for graders that read them.
    """
    answered = [problem for problem in problems if problem.answer is not None]
    gold: list[Case] = [(problem, problem.answer) for problem in answered if problem.answer is not None]
    corrupted = [(problem, corrupt(answer)) for problem, answer in gold]
    other = [(problem, answer) for problem in answered for answer in _another(problem, answered)]
    empty = [(problem, "") for problem in problems]
    cases = [*gold, *corrupted, *empty, *other]
    responses = [Response(tuple(encode(text)), text) for _, text in cases]
    graded = iter(zip(cases, grader([problem for problem, _ in cases], responses), strict=True) if cases else ())

    def claim(name: str, asked: Sequence[Case], holds: Callable[[Outcome], bool], detail: str) -> Claim:
        findings = [_witness(*next(graded), holds) for _ in asked]
        return _claim(name, detail, findings)

    claims = (
        claim("gold", gold, _is_right, "score 1"),
        claim("corrupted", corrupted, _is_refused, "score 0"),
        claim("empty", empty, _is_refused, "score 0"),
        claim("other", other, _is_refused, "score 0"),
    )
    return SelfTest(claims, len(problems))


def require(test: SelfTest) -> None:
    """Raise unless nothing disagrees; what could not run is no reason to refuse.

    Raises:
        ConfigError: with the first witness: the prompt, what was said, and its score.
    """
    failed = [claim for claim in test.claims if claim.verdict is Verdict.DISAGREES]
    if failed:
        raise ConfigError(
            f"the reward fails its self-test, {failed[0].name} answers: {failed[0].findings[0]}; mend the reward or "
            "the answers (grading.self_test = 0 trains without this test)"
        )


def corrupt(answer: str) -> str:
    """Return the answer with its last digit changed, or its last letter where it has none, or with an x more."""
    for alphabet in (string.digits, string.ascii_lowercase, string.ascii_uppercase):
        at = max(answer.rfind(character) for character in alphabet)
        if at >= 0:
            return answer[:at] + alphabet[(alphabet.index(answer[at]) + 1) % len(alphabet)] + answer[at + 1 :]
    return answer + "x"


def _another(problem: TextProblem, answered: Iterable[TextProblem]) -> list[str]:
    """Return another problem's answer of another value: the first after this one, or the first of all; else nothing."""
    own = _value(problem.answer or "")
    answers = [(each.number <= problem.number, each.answer) for each in answered if each.answer is not None]
    return [answer for _, answer in sorted(answers, key=lambda pair: pair[0]) if _value(answer) != own][:1]


def _value(answer: str) -> Fraction | str:
    """Return what an answer is worth as a number, or its text without case and white space."""
    try:
        return Fraction(answer.replace(",", "").strip())
    except (ValueError, ZeroDivisionError):
        return "".join(answer.casefold().split())


def _is_right(outcome: Outcome) -> bool:
    return outcome.status == "right"


def _is_refused(outcome: Outcome) -> bool:
    if outcome.score is None:
        return outcome.status == "unparseable"
    return outcome.score <= 0


def _witness(case: Case, outcome: Outcome, holds: Callable[[Outcome], bool]) -> str:
    problem, said = case
    if holds(outcome):
        return ""
    score = "no score" if outcome.score is None else f"{outcome.score:g}"
    return f"problem {problem.number} {_short(problem.prompt)}: {_short(said)} scores {score} ({outcome.status})"


def _claim(name: str, detail: str, findings: Sequence[str]) -> Claim:
    wrong = [finding for finding in findings if finding]
    if not findings:
        return Claim(name, Verdict.COULD_NOT_RUN, "no problem with a fitting answer")
    if wrong:
        told = f"{len(wrong)} of {len(findings)} do not {detail}"
        return Claim(name, Verdict.DISAGREES, told, tuple(wrong[:MOST_WITNESSES]))
    return Claim(name, Verdict.HOLDS, f"all {len(findings)} {detail}")


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:40]}...{shown[-30:]}"
