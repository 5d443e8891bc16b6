"""I10: does an evaluation metric equal its closed form, on every table of outcomes there can be?

An estimator of pass@k is unbiased for every success probability p exactly when, for each number c of right ones among
n, its mean over the tables with c right ones is the closed form: the binomial family leaves no other way.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from assay.audit.check import TOLERANCE, Check, SubjectError, answers, foreign, verdict_of
from assay.audit.invariants.byname import call_by_name
from assay.audit.invariants.findings import few

ClosedForm = Callable[[int, int, int], float]
"""From n samples, c of them right, and k, to the metric."""
CLOSED_FORMS: dict[str, ClosedForm] = {
    "pass@k": lambda n, c, k: 1 - math.comb(n - c, k) / math.comb(n, k),
    "pass^k": lambda n, c, k: math.comb(c, k) / math.comb(n, k),
    "mean": lambda n, c, k: c / n,
}
"""At least one of k right, all k right, and the share of right ones; k of n samples without replacement."""


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
        tolerance: absolute; the metrics lie in [0, 1].
    """
    if isinstance(closed_form, str) and closed_form not in CLOSED_FORMS:
        raise SubjectError(f"closed form {closed_form!r}: expected one of {', '.join(CLOSED_FORMS)}, or a function")
    if not 1 <= n <= 12 or not (k is None or 1 <= k <= n):
        raise SubjectError(f"n = {n}, k = {k}: expected n from 1 to 12, and k from 1 to n")
    form = CLOSED_FORMS[closed_form] if isinstance(closed_form, str) else closed_form
    findings, worst = [], 0.0
    for draws, count in itertools.product(range(1, n + 1) if k is None else [k], range(n + 1)):
        tables = [[float(i in chosen) for i in range(n)] for chosen in itertools.combinations(range(n), count)]
        mean = math.fsum(_estimate(estimator, table, draws) for table in tables) / len(tables)
        expected = form(n, count, draws)
        gap = abs(mean - expected) if math.isfinite(mean) else math.inf
        worst = max(worst, gap)
        if gap > tolerance:
            over = f" on average over {len(tables)} tables" if len(tables) > 1 else ""
            findings.append(f"n = {n}, k = {draws}, {count} right: {mean:.6g}{over}, closed form {expected:.6g}")
    name = closed_form if isinstance(closed_form, str) else "its closed form"
    return verdict_of(
        "I10",
        f"mean over the outcomes with each number of right ones, against {name}",
        few(findings),
        error=worst,
        tolerance=tolerance,
        why="float64",
        exactness=f"all {2**n} tables of {n} outcomes, {'every k' if k is None else f'k = {k}'}",
        remedy="pass@k is 1 - C(n-c, k) / C(n, k)" if closed_form == "pass@k" else "",
    )


@answers("I10")
def majority(
    vote: Callable[..., Any], *, choices: Sequence[str] = ("137", "1", "12"), n: int = 4, tolerance: float = TOLERANCE
) -> Check:
    """Check a majority vote over answers: 1 where the answer given most often is the gold one, else 0.

    Tables without a single most frequent answer are left out: how ties are broken is a choice.

    Args:
        vote: called by parameter name from ``answers`` (a list of n strings), ``gold``, and ``k``, which is n; returns
            a number.
        choices: distinct answers, some of which begin alike.
        n: votes.
        tolerance: absolute.
    """
    findings, tried = [], 0
    for table in itertools.product(choices, repeat=n):
        (first, count), *rest = Counter(table).most_common()
        if rest and rest[0][1] == count:
            continue
        for gold in choices:
            made = _number(call_by_name("the vote", vote, {"answers": list(table), "gold": gold, "k": n}), "the vote")
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
    choose: Callable[[list[dict[str, float]]], Any], *, metric: str = "reward", others: Sequence[str] = ("loss",)
) -> Check:
    """Check that the checkpoint called best is the one with the highest metric, whatever else was logged.

    Args:
        choose: from the logged values of each checkpoint to the index of the best one.
        metric: what best means; higher is better.
        others: logged too; they rise, fall and wander while the metric does.
    """
    levels, findings = (0.2, 0.5, 0.9), []
    orders = list(itertools.permutations(levels))
    for wanted, other in itertools.product(orders, orders):
        history = [
            {metric: reward, **dict.fromkeys(others, value - 0.5)} for reward, value in zip(wanted, other, strict=True)
        ]
        best = wanted.index(max(wanted))
        made = int(_number(foreign("the choice", choose, [dict(row) for row in history]), "the choice"))
        if made != best:
            findings.append(f"{metric} {list(wanted)}: checkpoint {made} is chosen, and {best} is best; log {history}")
    return verdict_of(
        "I10",
        f"the best checkpoint is the one with the highest {metric}",
        few(findings),
        exactness=f"{len(orders) ** 2} histories of {len(levels)} checkpoints",
        remedy=f"select by {metric}",
    )


def _estimate(estimator: Callable[..., Any], table: list[float], k: int) -> float:
    outcomes = torch.tensor(table, dtype=torch.float64)
    offered = {"outcomes": outcomes, "k": k, "n": len(table), "c": int(sum(table))}
    return _number(call_by_name("the estimator", estimator, offered), "the estimator")


def _number(made: Any, what: str) -> float:
    try:
        return float(made)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SubjectError(f"{what} returned {type(made).__name__}; it must return one number") from error
