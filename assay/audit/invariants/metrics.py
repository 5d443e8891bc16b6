"""I10: does an evaluation metric equal its closed form, on every table of outcomes there can be?

An estimator of pass@k is unbiased for every success probability p exactly when, for each number c of right ones among
n, its mean over the tables with c right ones is the closed form: the binomial family leaves no other way.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.audit.check import TOLERANCE, Check, SubjectError, answers, foreign, verdict_of
from assay.audit.invariants.byname import call_by_name
from assay.audit.invariants.findings import few
from assay.audit.invariants.readings import finite_of, number_of
from assay.audit.precision import Precisions, tolerance_for

ClosedForm = Callable[[int, int, int], float]
"""From n samples, c of them right, and k, to the metric."""
CLOSED_FORMS: dict[str, ClosedForm] = {
    "pass@k": lambda n, c, k: 1 - math.comb(n - c, k) / math.comb(n, k),
    "pass^k": lambda n, c, k: math.comb(c, k) / math.comb(n, k),
    "mean": lambda n, c, k: c / n,
}
"""At least one of k right, all k right, and the share of right ones; k of n samples without replacement."""


MOST_TABLES = 20_000
"""Of a vote; each is tried with every gold answer."""
LEVELS = ((0.2, 0.5, 0.9), (0.91, 0.95, 0.99), (-0.9, -0.5, -0.2), (-0.8, 0.3, 0.5))
"""Metrics of three checkpoints: some begin above any threshold, some are negative, one is largest below zero."""
OTHER_LEVELS = (-40.0, 3.0, 50.0)
"""Of everything else that is logged: so far apart that a small share of it outweighs the metric."""


@answers("I10")
def evaluation(
    estimator: Callable[..., Any],
    *,
    closed_form: str | ClosedForm = "pass@k",
    n: int = 5,
    k: int | None = None,
    tolerance: float = TOLERANCE,
) -> Check:
    """Check an estimator over sampled outcomes against its closed form.

    Args:
        estimator: called by parameter name from ``outcomes`` (float64 ``[n]``, 1.0 where right), ``k``, and the counts
            ``n`` and ``c``; returns a number.
        closed_form: one of :data:`CLOSED_FORMS`, or a function of n, c and k.
        n: samples of one problem; all ``2^n`` tables are gone through.
        k: every k from 1 to n unless given.
        tolerance: absolute, of what computes in float64; the metrics lie in [0, 1].
    """
    if isinstance(closed_form, str) and closed_form not in CLOSED_FORMS:
        raise SubjectError(f"closed form {closed_form!r}: expected one of {', '.join(CLOSED_FORMS)}, or a function")
    if not 1 <= n <= 12 or not (k is None or 1 <= k <= n):
        raise SubjectError(f"n = {n}, k = {k}: expected n from 1 to 12, and k from 1 to n")
    name = closed_form if isinstance(closed_form, str) else "its closed form"
    form = CLOSED_FORMS[closed_form] if isinstance(closed_form, str) else closed_form
    gaps: list[tuple[float, str]] = []
    with Precisions() as seen:
        for draws, count in itertools.product(range(1, n + 1) if k is None else [k], range(n + 1)):
            tables = [[float(i in chosen) for i in range(n)] for chosen in itertools.combinations(range(n), count)]
            mean = math.fsum(_estimate(estimator, table, draws, seen) for table in tables) / len(tables)
            expected = finite_of("the closed form", foreign("the closed form", form, n, count, draws))
            over = f" on average over {len(tables)} tables" if len(tables) > 1 else ""
            line = f"n = {n}, k = {draws}, {count} right: {mean:.6g}{over}, closed form {expected:.6g}"
            gaps.append((abs(mean - expected) if math.isfinite(mean) else math.inf, line))
    allowed, why = tolerance_for(seen.coarsest, tolerance, "float64")
    return verdict_of(
        "I10",
        f"mean over the outcomes with each number of right ones, against {name}",
        few(line for gap, line in gaps if not gap <= allowed),
        error=max(gap for gap, _ in gaps),
        tolerance=allowed,
        why=why,
        exactness=f"all {2**n} tables of {n} outcomes, {'every k' if k is None else f'k = {k}'}",
        remedy="pass@k is 1 - C(n-c, k) / C(n, k)" if closed_form == "pass@k" else "",
    )


@answers("I10")
def majority(
    vote: Callable[..., Any],
    *,
    choices: Sequence[str] = ("137", "147", "173", "17", "red", "rod"),
    n: int = 4,
    tolerance: float = TOLERANCE,
) -> Check:
    """Check a majority vote over answers: 1 where the answer given most often is the gold one, else 0.

    Tables without a single most frequent answer are left out: how ties are broken is a choice.

    Args:
        vote: called by parameter name from ``answers`` (a list of n strings), ``gold``, and ``k``, which is n; returns
            a number.
        choices: at least two distinct answers; those given begin alike, end alike, are as long, or have the same
            characters, so that counting less than whole answers shows.
        n: votes.
        tolerance: absolute.
    """
    if len(set(choices)) != len(choices) or len(choices) < 2 or not all(isinstance(choice, str) for choice in choices):
        raise SubjectError(f"choices {list(choices)}: expected at least two distinct texts")
    if n < 1 or len(choices) ** n > MOST_TABLES:
        raise SubjectError(f"n = {n} votes for {len(choices)} answers: expected 1 to {MOST_TABLES} tables of votes")
    findings, tried = [], 0
    for table in itertools.product(choices, repeat=n):
        (first, count), *rest = Counter(table).most_common()
        if rest and rest[0][1] == count:
            continue
        for gold in choices:
            voted = call_by_name("the vote", vote, {"answers": list(table), "gold": gold, "k": n})
            made = number_of("the vote", voted)
            tried += 1
            if not abs(made - float(first == gold)) <= tolerance:
                findings.append(f"answers {list(table)} with gold {gold!r}: {made:g}, and {first!r} has the most votes")
    return verdict_of(
        "I10",
        "the answer with the most votes decides",
        few(findings),
        tolerance=tolerance,
        exactness=f"{tried} tables of {n} answers with one most frequent among them",
        remedy="count whole answers",
    )


@answers("I10")
def best_checkpoint(
    choose: Callable[[list[dict[str, float]]], Any],
    *,
    metric: str = "reward",
    others: Sequence[str] = ("loss", "kl"),
) -> Check:
    """Check that the checkpoint called best is the one with the highest metric, whatever else was logged.

    A choice that raises on some histories and answers others disagrees there.

    Args:
        choose: from the logged values of each checkpoint to the index of the best one.
        metric: what best means; higher is better.
        others: logged too, at most three; each rises, falls and wanders on its own while the metric does.
    """
    if metric in others or len(others) > 3:
        raise SubjectError(f"others = {list(others)}: expected at most three names, none of them {metric!r}")
    findings, refusals, histories = [], [], list(_histories(metric, others))
    for history in histories:
        values = [row[metric] for row in history]
        best = values.index(max(values))
        try:
            made = foreign("the choice", choose, [dict(row) for row in history])
        except SubjectError as error:
            refusals.append(f"{metric} {values}: checkpoint {best} is best, and {error}")
            continue
        place = _place(made, len(history))
        if place != best:
            findings.append(f"{metric} {values}: checkpoint {place} is chosen, and {best} is best; log {history}")
    if len(refusals) == len(histories):
        raise SubjectError(refusals[0])
    return verdict_of(
        "I10",
        f"the best checkpoint is the one with the highest {metric}",
        [*few(findings), *few(refusals, 1)],
        exactness=f"{len(histories)} histories of 3 checkpoints",
        remedy=f"select by {metric}",
    )


def _histories(metric: str, others: Sequence[str]) -> Iterator[list[dict[str, float]]]:
    """Yield what was logged: the metric in every order of its levels, everything else in every order of its own."""
    orders = list(itertools.permutations(OTHER_LEVELS))
    for levels in LEVELS:
        for wanted, *rest in itertools.product(itertools.permutations(levels), *[orders] * len(others)):
            rows = zip(wanted, *rest, strict=True)
            yield [dict(zip((metric, *others), row, strict=True)) for row in rows]


def _place(made: Any, count: int) -> int:
    place = number_of("the choice", made)
    if place not in range(count):
        raise SubjectError(f"the choice returned {place:g}; it must return the index of one of {count} checkpoints")
    return int(place)


def _estimate(estimator: Callable[..., Any], table: list[float], k: int, seen: Precisions) -> float:
    outcomes = torch.tensor(table, dtype=torch.float64)
    offered = {"outcomes": outcomes, "k": k, "n": len(table), "c": int(sum(table))}
    made = call_by_name("the estimator", estimator, offered)
    if isinstance(made, np.ndarray | np.generic) and made.dtype.kind == "f":
        made = torch.as_tensor(made)
    if isinstance(made, Tensor):
        seen.see(made)
    return number_of("the estimator", made)
