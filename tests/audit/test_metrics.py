"""I10 on estimators whose mean is known, and on those that answer another question."""

import random
from collections import Counter
from math import comb

import numpy as np
import pytest
import torch

from assay.audit.invariants.metrics import CLOSED_FORMS, best_checkpoint, evaluation, majority
from assay.verdicts import Verdict


def by_counts(n, c, k):
    return 1 - comb(n - c, k) / comb(n, k)


def first_k(outcomes, k):
    """Whether one of the first k is right: it depends on the order, and is unbiased."""
    return float(outcomes[:k].max())


def by_product(outcomes, k):
    n, c = len(outcomes), int(outcomes.sum())
    return 1.0 if n - c < k else 1 - np.prod(1 - k / np.arange(n - c + 1, n + 1))


@pytest.mark.parametrize("estimator", [by_counts, first_k, by_product])
@pytest.mark.parametrize("n", [1, 3, 6])
def test_unbiased_estimators_of_pass_at_k_hold(estimator, n):
    found = evaluation(estimator, n=n)
    assert found.verdict is Verdict.HOLDS and found.error < 1e-14, found
    assert f"all {2**n} tables" in found.exactness


@pytest.mark.parametrize("p", [0.1, 0.5, 0.83])
def test_closed_forms_are_unbiased_for_every_success_probability(p):
    """The mean over the binomial law is what one means by them: 1 - (1 - p)^k, p^k and p."""
    n = 6
    for k in range(1, n + 1):
        expected = {"pass@k": 1 - (1 - p) ** k, "pass^k": p**k, "mean": p}
        for name, form in CLOSED_FORMS.items():
            mean = sum(comb(n, c) * p**c * (1 - p) ** (n - c) * form(n, c, k) for c in range(n + 1))
            assert mean == pytest.approx(expected[name], abs=1e-13)


def test_other_closed_forms():
    assert evaluation(lambda outcomes, k: float(outcomes[:k].min()), closed_form="pass^k").verdict is Verdict.HOLDS
    assert evaluation(lambda outcomes: outcomes.mean(), closed_form="mean").verdict is Verdict.HOLDS
    assert evaluation(lambda n, c: c, closed_form=lambda n, c, k: c).verdict is Verdict.HOLDS


def with_replacement(outcomes, k):
    return 1 - float(1 - outcomes.mean()) ** k


def test_a_bootstrap_is_not_pass_at_k_and_says_by_how_much():
    found = evaluation(with_replacement, n=4, k=4)
    assert found.verdict is Verdict.DISAGREES
    assert f"1 right: {1 - 0.75**4:.6g} on average over 4 tables, closed form 1" in found.findings[0]
    assert found.error == pytest.approx(0.75**4, abs=1e-15)
    assert "C(n-c, k)" in found.remedy


def test_an_estimator_that_is_no_number_is_wrong_and_one_that_cannot_be_called_is_not_run():
    assert evaluation(lambda outcomes, k: float("nan")).verdict is Verdict.DISAGREES
    for estimator, options, reason in [
        (lambda table: 1.0, {}, "asks for 'table'"),
        (lambda outcomes, k: outcomes, {"n": 3}, "returned Tensor"),
        (lambda outcomes, k: 1 / 0, {}, "ZeroDivisionError"),
        (by_counts, {"n": 3, "k": 4}, "k = 4"),
        (by_counts, {"n": 40}, "n = 40"),
        (by_counts, {"closed_form": "pass"}, "'pass'"),
    ]:
        found = evaluation(estimator, **options)
        assert found.verdict is Verdict.COULD_NOT_RUN and reason in found.detail


def count_whole(answers, gold):
    return max(set(answers), key=answers.count) == gold


def test_majority():
    assert majority(count_whole).verdict is Verdict.HOLDS
    assert majority(count_whole, choices=("a", "b"), n=3).verdict is Verdict.HOLDS
    cut = majority(lambda answers, gold: Counter(a[:1] for a in answers).most_common(1)[0][0] == gold[:1])
    assert cut.verdict is Verdict.DISAGREES and "gold '1'" in cut.findings[0]
    assert majority(lambda answers, gold: gold in answers).verdict is Verdict.DISAGREES
    assert majority(lambda answers: answers).verdict is Verdict.COULD_NOT_RUN


def test_ties_are_left_out():
    """Of the 27 tables of 3 votes for 3 answers, 6 have three different ones; the others have one most frequent."""
    assert "63 tables" in majority(count_whole, n=3).exactness


def test_the_best_checkpoint():
    assert best_checkpoint(lambda log: int(np.argmax([row["reward"] for row in log]))).verdict is Verdict.HOLDS
    assert best_checkpoint(lambda log: torch.tensor([row["reward"] for row in log]).argmax()).verdict is Verdict.HOLDS
    for choose in (
        lambda log: min(range(3), key=lambda place: log[place]["loss"]),
        lambda log: min(range(3), key=lambda place: log[place]["reward"]),
        lambda log: len(log) - 1,
    ):
        found = best_checkpoint(choose)
        assert found.verdict is Verdict.DISAGREES and "is best" in found.findings[0]
    lowest = best_checkpoint(lambda log: log.index(max(log, key=lambda row: row["acc"])), metric="acc", others=("kl",))
    assert lowest.verdict is Verdict.HOLDS
    assert best_checkpoint(lambda log: log[0]["accuracy"]).verdict is Verdict.COULD_NOT_RUN


def test_an_estimator_that_draws_is_seen_through():
    draws = random.Random(0)
    found = evaluation(lambda outcomes, k: float(outcomes[draws.sample(range(5), k)].max()), k=2)
    assert found.verdict is Verdict.DISAGREES, "its mean over a few draws is not the closed form"
