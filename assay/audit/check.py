"""What every check answers with, and the fourteen invariants that are checked.

A check takes the narrowest subject it needs (an advantage function, a grader, two checkpoints), tries it on small
exact cases, and returns a :class:`Check`. A subject that raises, or returns what it must not, is a verdict too: foreign
code is called through :func:`foreign`, and :func:`answers` turns the error into *could not run*.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec

import torch
from torch import Tensor

from assay.errors import AssayError
from assay.verdicts import Claim, Verdict

P = ParamSpec("P")

TOLERANCE = 1e-9
"""Relative; what is enumerated in float64 comes within about 1e-14 when it is right."""

INVARIANTS = {
    "I1": "expected gradient",
    "I2": "partition",
    "I3": "masked positions",
    "I4": "group semantics",
    "I5": "liveness",
    "I6": "fixed points",
    "I7": "sampler freshness",
    "I8": "sampler and scorer",
    "I9": "verifier",
    "I10": "evaluation",
    "I11": "resume",
    "I12": "seeds",
    "I13": "parity",
    "I14": "row alignment",
}
"""The invariants by number, each in a word or two."""


MEANINGS = {
    "I1": "the expected update is the gradient of the declared objective",
    "I2": "micro-batches, ranks, accumulation and packing do not change the update",
    "I3": "masked positions are inert, NaN included; one mask in numerator and denominator",
    "I4": "permuted, uneven, single, constant and dropped rows of a group behave as its definition says",
    "I5": "every option changes the update where it can act, or is refused",
    "I6": "ratio 1 and KL 0 at step 0 and across a restart; on-policy metrics read their exact value",
    "I7": "what is sampled from is what was trained",
    "I8": "sampler and scorer give the same tokens the same probability, support included",
    "I9": "gold scores 1, corrupted and misplaced answers 0, equivalents 1; no crash, no hang",
    "I10": "an evaluation estimator equals its closed form over all outcomes",
    "I11": "interrupted and resumed equals uninterrupted",
    "I12": "seeds are distinct within a group and across ranks, and reproducible across runs",
    "I13": "two paths that claim one formula agree in value and gradient",
    "I14": "rows stay aligned at every hand-over",
}
"""What each says."""


class SubjectError(AssayError, ValueError):
    """A subject cannot be audited: it asks for what there is not, raises, or returns something unusable."""


@dataclass(frozen=True)
class Check(Claim):
    """One invariant, checked on one subject.

    ``name`` begins with the invariant's number, ``detail`` says what was compared, and ``findings`` are the
    witnesses, the smallest first.

    Attributes:
        error: largest relative error found; None where nothing numeric was compared.
        tolerance: largest that still agrees.
        why: why the tolerance is that.
        exactness: what was gone through, such as ``"3,060 multisets of 15 responses"``.
        remedy: the one change that would make it hold, where it is known.
    """

    error: float | None = None
    tolerance: float | None = None
    why: str = ""
    exactness: str = ""
    remedy: str = ""

    @property
    def figures(self) -> str:
        """Return the error, the tolerance and why it is that, and what was gone through."""
        parts = []
        if self.error is not None:
            parts.append(f"relative error {self.error:.1e}")
            if self.tolerance is not None:
                parts.append(f"tolerance {self.tolerance:.0e}{f', {self.why}' if self.why else ''}")
        parts += [self.exactness] if self.exactness else []
        return f" ({'; '.join(parts)})" if parts else ""

    @property
    def invariant(self) -> str:
        """Return the number of the invariant, such as ``"I4"``."""
        return self.name.split()[0]


def verdict_of(
    invariant: str,
    detail: str,
    findings: tuple[str, ...] | list[str] = (),
    *,
    error: float | None = None,
    tolerance: float | None = None,
    why: str = "",
    exactness: str = "",
    remedy: str = "",
) -> Check:
    """Return the check of an invariant: it holds when there is no finding against it.

    Args:
        invariant: its number.
        detail: what was compared.
        findings: witnesses against it; each names the case and both values.
        error: largest relative error found.
        tolerance: largest that still agrees.
        why: why the tolerance is that.
        exactness: what was gone through.
        remedy: kept only when there is a finding.
    """
    verdict = Verdict.DISAGREES if findings else Verdict.HOLDS
    name, remedy = f"{invariant} {INVARIANTS[invariant]}", remedy if findings else ""
    return Check(name, verdict, detail, tuple(findings), error, tolerance, why, exactness, remedy)


def could_not_run(invariant: str, why: str, *, exactness: str = "") -> Check:
    """Return the check of an invariant that could not be asked, with the reason."""
    return Check(f"{invariant} {INVARIANTS[invariant]}", Verdict.COULD_NOT_RUN, why, exactness=exactness)


def foreign(what: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call someone else's code. What it prints goes to the error stream, and gradients are recorded.

    Args:
        what: how a message names it, such as ``"the advantage function"``.
        function: what to call.
        args: handed to it.
        kwargs: handed to it.

    Raises:
        SubjectError: it raised anything, ``SystemExit`` included.
    """
    try:
        with torch.enable_grad(), contextlib.redirect_stdout(sys.stderr):
            return function(*args, **kwargs)
    except SubjectError:
        raise
    except (Exception, SystemExit) as error:
        raise SubjectError(f"{what} raised {type(error).__name__}: {error}") from error


def answers(invariant: str) -> Callable[[Callable[P, Check]], Callable[P, Check]]:
    """Make a check answer *could not run*, with the reason, where its subject cannot be used."""

    def wrap(check: Callable[P, Check]) -> Callable[P, Check]:
        @functools.wraps(check)
        def answer(*args: P.args, **kwargs: P.kwargs) -> Check:
            try:
                return check(*args, **kwargs)
            except SubjectError as error:
                return could_not_run(invariant, str(error))

        return answer

    return wrap


def derivative(what: str, value: Tensor, leaves: Sequence[Tensor], *, keep: bool = False) -> list[Tensor | None]:
    """Differentiate what someone else's code returned; its backward may be theirs too.

    Args:
        what: how a message names it, such as ``"the loss"``.
        value: one number on a graph.
        leaves: to differentiate by; None is returned for one that the value does not depend on.
        keep: whether the graph is needed again.

    Raises:
        SubjectError: the backward raised anything, as it does when an input was changed after its use.
    """

    def backward() -> tuple[Tensor | None, ...]:
        return torch.autograd.grad(value.sum(), leaves, allow_unused=True, retain_graph=keep)

    return list(foreign(f"the backward of {what}", backward))


def relative_gap(made: Tensor, expected: Tensor) -> float:
    """Return the largest difference over the largest finite expected entry, or over 1 where that is zero.

    Equal entries are no gap, infinities included. Any other entry that is not finite is infinitely far, NaN from NaN
    too: nothing agrees with what is not a number.
    """
    if made.shape != expected.shape:
        return float("inf")
    finite = expected[expected.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 1.0
    far = torch.where(made == expected, 0.0, (made - expected).abs().double())
    gap = far.nan_to_num(nan=float("inf"), posinf=float("inf"))
    return float(gap.max()) / (scale or 1.0) if gap.numel() else 0.0
