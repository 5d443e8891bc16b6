"""What test problems share with training problems, counted: a test that leaks measures memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from assay.types import TextProblem

N_GRAM = 8
NEAR = 0.7
"""Share of a test prompt's 8-grams found in training from which it counts as near. Source: Chowdhery et al., "PaLM",
2022, section 8."""
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Contamination:
    """What was found between and within the splits.

    Attributes:
        duplicates: problems dropped because an earlier one has the same prompt, up to white space.
        conflicting_answers: those among them whose answer is another one; the first is kept.
        overlap_prompts: training problems dropped because their prompt is a test problem's.
        shared_keys: training problems dropped because a test problem has the same value of the column to split by.
        near_duplicates: test problems whose words nearly all stand in training problems with the same answer; counted,
            not dropped.
    """

    duplicates: int = 0
    conflicting_answers: int = 0
    overlap_prompts: int = 0
    shared_keys: int = 0
    near_duplicates: int = 0

    def __str__(self) -> str:
        return (
            f"{self.duplicates} duplicate prompts dropped ({self.conflicting_answers} with another answer); "
            f"{self.overlap_prompts} training problems dropped that are in test, {self.shared_keys} that share a key "
            f"with test; {self.near_duplicates} test problems near to training problems with the same answer, kept"
        )


def prompt_key(problem: TextProblem) -> str:
    """Return what two prompts share exactly when they differ in white space alone."""
    if isinstance(problem.prompt, str):
        return " ".join(problem.prompt.split())
    return "\0".join(f"{turn['role']}: {' '.join(turn['content'].split())}" for turn in problem.prompt)


def drop_duplicates(problems: Iterable[TextProblem]) -> tuple[list[TextProblem], int, int]:
    """Keep the first problem of each prompt; return them, how many were dropped, and how many with another answer."""
    first: dict[str, TextProblem] = {}
    dropped = conflicting = 0
    for problem in problems:
        kept = first.setdefault(prompt_key(problem), problem)
        if kept is not problem:
            dropped += 1
            conflicting += kept.answer != problem.answer
    return list(first.values()), dropped, conflicting


def count_near(train: Sequence[TextProblem], test: Sequence[TextProblem]) -> int:
    """Count the test problems most of whose 8-grams stand in training problems with the same answer.

    What all prompts begin and end with alike, such as worked examples, is left out. A shorter prompt is one gram.
    """
    words = [_WORD.findall(prompt_key(problem).casefold()) for problem in (*train, *test)]
    before = _common(words)
    after = _common([row[before:][::-1] for row in words])
    grams = [_grams(row[before : len(row) - after]) for row in words]
    known: dict[str | None, set[tuple[str, ...]]] = {}
    for problem, row in zip(train, grams, strict=False):
        known.setdefault(problem.answer, set()).update(row)
    nothing: set[tuple[str, ...]] = set()
    return sum(
        sum(gram in known.get(problem.answer, nothing) for gram in row) >= NEAR * len(row)
        for problem, row in zip(test, grams[len(train) :], strict=True)
    )


def _common(words: Sequence[list[str]]) -> int:
    """Return how many words all rows begin with."""
    first, last = min(words, default=[]), max(words, default=[])
    return next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))


def _grams(words: list[str]) -> set[tuple[str, ...]]:
    return {tuple(words[at : at + N_GRAM]) for at in range(max(1, len(words) - N_GRAM + 1))}
