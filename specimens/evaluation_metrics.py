"""Metrics that answer another question: a bootstrap for pass@k, votes by first characters, loss for the best."""

from __future__ import annotations

from collections import Counter
from functools import partial
from math import comb

from jaxtyping import Float
from torch import Tensor

from assay.audit.invariants.metrics import best_checkpoint, evaluation, majority
from specimens.bench import NonBug, Specimen


def best_of_k_with_replacement(outcomes: Float[Tensor, " n"], k: int) -> float:
    """Return the mean over all bootstrap samples of size k: a right one is missed k times."""
    return 1 - float(1 - outcomes.mean()) ** k


def best_of_k_without_replacement(outcomes: Float[Tensor, " n"], k: int) -> float:
    n, c = len(outcomes), int(outcomes.sum())
    return 1 - comb(n - c, k) / comb(n, k)


def vote_by_first_character(answers: list[str], gold: str) -> float:
    """Take ``answer[0]`` where the answer itself was meant."""
    (winner, _), *_ = Counter(answer[0] for answer in answers).most_common()
    return float(winner == gold[0])


def vote_by_answer(answers: list[str], gold: str) -> float:
    (winner, _), *_ = Counter(answers).most_common()
    return float(winner == gold)


def lowest_loss(history: list[dict[str, float]]) -> int:
    return min(range(len(history)), key=lambda place: history[place]["loss"])


def highest_reward(history: list[dict[str, float]]) -> int:
    return max(range(len(history)), key=lambda place: history[place]["reward"])


SPECIMENS = (
    Specimen("EV-01", partial(evaluation, n=4), best_of_k_with_replacement, best_of_k_without_replacement),
    # of the report: the vote by first characters; that rewards are misaligned before is RW-09's kind
    Specimen("EV-02", majority, vote_by_first_character, vote_by_answer),
    Specimen("EV-04", best_checkpoint, lowest_loss, highest_reward),
)
NONBUGS = (
    NonBug(
        "verl-project/verl#1320",
        partial(evaluation, closed_form=lambda n, c, k: 1 - ((n - c) / n) ** k, n=4),
        best_of_k_with_replacement,
    ),
)
