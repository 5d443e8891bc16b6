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
        (lambda outcomes, k: outcomes, {"n": 3}, "returned (3,); it must return one number"),
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
    assert cut.verdict is Verdict.DISAGREES and "with gold '147': 1, and '137' has the most votes" in cut.findings[0]
    assert majority(lambda answers, gold: gold in answers).verdict is Verdict.DISAGREES
    assert majority(lambda answers: answers).verdict is Verdict.COULD_NOT_RUN


def test_ties_are_left_out():
    """Of the 27 tables of 3 votes for 3 answers, 6 have three different ones; the others have one most frequent."""
    assert "63 tables" in majority(count_whole, choices=("a", "b", "c"), n=3).exactness


def counted_by(part):
    """Count a part of each answer in place of the whole."""

    def vote(answers, gold):
        return float(Counter(map(part, answers)).most_common(1)[0][0] == part(gold))

    return vote


@pytest.mark.parametrize(
    "part",
    [
        lambda answer: answer[0],
        lambda answer: answer[-1],
        len,
        lambda answer: (answer[0], answer[-1]),
        lambda answer: (answer[0], answer[-1], len(answer)),
        lambda answer: "".join(sorted(answer)),
        set,
        lambda answer: int(answer) if answer.isdigit() else 0,
    ],
    ids=["first", "last", "length", "both ends", "ends and length", "same characters", "set", "numbers only"],
)
def test_a_vote_over_less_than_whole_answers_is_found(part):
    frozen = (lambda answer: frozenset(answer)) if part is set else part
    assert majority(counted_by(frozen)).verdict is Verdict.DISAGREES


def test_a_vote_that_is_no_number_disagrees_and_votes_that_tell_nothing_are_not_run():
    assert majority(lambda answers: float("nan")).verdict is Verdict.DISAGREES
    for options, reason in [
        ({"choices": []}, "at least two distinct texts"),
        ({"choices": ["a"]}, "at least two distinct texts"),
        ({"choices": ["a", "a"]}, "at least two distinct texts"),
        ({"n": 0}, "n = 0 votes"),
        ({"n": 9}, "n = 9 votes"),
    ]:
        found = majority(count_whole, **options)
        assert found.verdict is Verdict.COULD_NOT_RUN and reason in found.detail


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
    assert best_checkpoint(highest, others=()).verdict is Verdict.HOLDS
    lowest = best_checkpoint(lambda log: log.index(max(log, key=lambda row: row["acc"])), metric="acc", others=("kl",))
    assert lowest.verdict is Verdict.HOLDS
    assert best_checkpoint(lambda log: log[0]["accuracy"]).verdict is Verdict.COULD_NOT_RUN


def highest(log):
    return max(range(len(log)), key=lambda place: log[place]["reward"])


def first_above_zero(log):
    """Begin at 0, so that nothing negative is ever better."""
    best, place = 0.0, 0
    for number, row in enumerate(log):
        if row["reward"] > best:
            best, place = row["reward"], number
    return place


def highest_unless_the_others_part(log):
    """Right as long as whatever else is logged moves together."""
    places = [max(range(3), key=lambda place: log[place][name]) for name in ("reward", "loss", "kl")]
    return places[0] if places[1] == places[2] else places[2]


@pytest.mark.parametrize(
    ("choose", "witness"),
    [
        (first_above_zero, "reward [-0.9, -0.5, -0.2]: checkpoint 0 is chosen, and 2 is best"),
        (lambda log: max(range(3), key=lambda place: abs(log[place]["reward"])), "checkpoint"),
        (lambda log: next(i for i, row in enumerate(log) if row["reward"] >= 0.9), "the choice raised StopIteration"),
        (lambda log: max(range(3), key=lambda i: log[i]["reward"] - 0.01 * log[i]["kl"]), "checkpoint"),
        (lambda log: max(range(3), key=lambda i: log[i]["reward"] - 0.01 * log[i]["loss"]), "checkpoint"),
        (highest_unless_the_others_part, "checkpoint"),
        (lambda log: max(range(3), key=lambda i: int(10 * log[i]["reward"])), "reward [0.91, 0.95, 0.99]"),
    ],
    ids=[
        "from zero",
        "absolute",
        "above a threshold",
        "less some kl",
        "less some loss",
        "while the others agree",
        "first digit",
    ],
)
def test_choices_that_are_right_on_some_histories_alone_are_found(choose, witness):
    assert best_checkpoint(highest).verdict is Verdict.HOLDS
    found = best_checkpoint(choose)
    assert found.verdict is Verdict.DISAGREES and any(witness in line for line in found.findings), found.findings


@pytest.mark.parametrize("made", [float("nan"), float("inf"), 1.7, -1, 3, None, "1", torch.zeros(3), 1j])
def test_what_is_no_index_of_a_checkpoint_is_no_verdict(made):
    assert best_checkpoint(lambda log: made).verdict is Verdict.COULD_NOT_RUN
    found = best_checkpoint(lambda log: highest(log) + 0.7)
    assert found.verdict is Verdict.COULD_NOT_RUN and "must return the index of one of 3" in found.detail


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "x", torch.zeros(2), 1j, {}])
def test_a_closed_form_that_is_no_finite_number_is_no_verdict(value):
    found = evaluation(by_counts, closed_form=lambda n, c, k: value)
    assert found.verdict is Verdict.COULD_NOT_RUN and "the closed form returned" in found.detail


def test_a_closed_form_that_raises_is_no_verdict():
    found = evaluation(by_counts, closed_form=lambda n, c, k: 1 / (n - c))
    assert found.verdict is Verdict.COULD_NOT_RUN and "the closed form raised ZeroDivisionError" in found.detail


@pytest.mark.parametrize("rounded", [torch.Tensor.float, lambda made: made.numpy().astype(np.float32)])
def test_float32_is_allowed_its_own_roundings(rounded):
    """The rounding of 1/3, about 1e-8, is far from 1e-9 and from what any wrong formula gives."""
    found = evaluation(lambda n, c, k: rounded(torch.tensor(by_counts(n, c, k), dtype=torch.float64)))
    assert found.verdict is Verdict.HOLDS and found.error > 1e-9, found
    assert found.tolerance == 1e-5 and found.why == "the subject computes in float32"
    wrong = evaluation(lambda outcomes, k: rounded(torch.tensor(with_replacement(outcomes, k))))
    assert wrong.verdict is Verdict.DISAGREES
    assert evaluation(by_counts).tolerance == 1e-9


def test_an_estimator_that_draws_is_seen_through():
    draws = random.Random(0)
    found = evaluation(lambda outcomes, k: float(outcomes[draws.sample(range(5), k)].max()), k=2)
    assert found.verdict is Verdict.DISAGREES, "its mean over a few draws is not the closed form"
