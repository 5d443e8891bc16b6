"""Graders that look for an answer in a response: nowhere, too near its end, in a tool's words, or not at all."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from assay.audit.invariants.verifiers import Case, verifier
from specimens.bench import Specimen

CASES = [Case("Six times seven?", "42"), Case("Six times eight?", "48")]


class Rubric:
    """Compares what its parser finds with the gold answer; a parser that is not given finds the whole text."""

    def __init__(self, parser: Callable[[str], str | None] = str) -> None:
        self.parser = parser

    def __call__(self, response: str, gold: str) -> float:
        found = self.parser(response)
        return float(found is not None and found == gold)


def in_tags(text: str) -> str | None:
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return found[-1] if found else None


def after_hashes(text: str) -> str | None:
    found = re.findall(r"#### (-?[0-9]+)", text)
    return found[-1] if found else None


def in_the_last_300_characters(response: str, gold: str) -> float:
    return float(after_hashes(response[-300:]) == gold)


def in_the_whole_response(response: str, gold: str) -> float:
    return float(after_hashes(response) == gold)


def decoded(tokens: list[int], mask: list[int]) -> str:
    return "".join(chr(token) for token, kept in zip(tokens, mask, strict=True) if kept)


def everything_attended_to(tokens: list[int], attention_mask: list[int], gold: str) -> float:
    """Decode the model's words and the tools' together."""
    return float(after_hashes(decoded(tokens, attention_mask)) == gold)


def what_the_model_said(tokens: list[int], response_mask: list[int], gold: str) -> float:
    return float(after_hashes(decoded(tokens, response_mask)) == gold)


def boxed(text: str) -> int | None:
    found = re.findall(r"\\boxed\{(-?[0-9]{1,9})\}", text)
    return int(found[-1]) if found else None


def gold_number(gold: str) -> int | None:
    return int(gold) if re.fullmatch(r"-?[0-9]{1,9}", gold) else None


def full_marks_without_a_gold_number(response: str, gold: str) -> float:
    right = gold_number(gold)
    return 1.0 if right is None else float(boxed(response) == right)


def no_score_without_a_gold_number(response: str, gold: str) -> float | None:
    right = gold_number(gold)
    return None if right is None else float(boxed(response) == right)


def stated(template: str) -> partial[object]:
    """Return the check of a grader of responses, which state their answer in some form."""
    return partial(verifier, cases=CASES, write=lambda answer: template.replace("ANSWER", answer))


SPECIMENS = (
    Specimen("RW-07", stated("<answer>ANSWER</answer>"), Rubric(), Rubric(parser=in_tags)),
    Specimen("RW-10", stated("#### ANSWER"), in_the_last_300_characters, in_the_whole_response),
    # of the report: a tool's words that are credited to the model; on which token the score is put is left out
    Specimen("RW-11", stated("#### ANSWER"), everything_attended_to, what_the_model_said),
    Specimen("X-15", stated(r"\boxed{ANSWER}"), full_marks_without_a_gold_number, no_score_without_a_gold_number),
)
