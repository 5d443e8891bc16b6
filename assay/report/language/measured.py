"""What was measured of a policy: rates with intervals, differences, bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

STATUSES = ("right", "wrong", "unparseable", "timeout", "error")


@dataclass(frozen=True)
class Rate:
    """A share, or a difference of two, with the ends of its interval."""

    rate: float
    low: float
    high: float


@dataclass(frozen=True)
class Answers:
    """What the responses of one kind, sampled or greedy, came to at one point on one split.

    Attributes:
        success: share right, problems weighed equally.
        if_unscorable_right: what that would be if every response without a score were right.
        passes: pass@k by k; empty for greedy ones.
        outcomes: responses by status.
        in_format: share of them.
        truncated: share of them.
        unscorable: share of them.
    """

    success: Rate
    if_unscorable_right: float
    passes: Mapping[int, Rate]
    outcomes: Mapping[str, int]
    in_format: float
    truncated: float
    unscorable: float

    @property
    def count(self) -> int:
        """Return how many responses there are."""
        return sum(self.outcomes.values())


@dataclass(frozen=True)
class Point:
    """One point of a run on one split.

    Attributes:
        level: coverage of its intervals.
        problems: how many were measured.
        sampled: None where nothing was sampled.
        greedy: None where the likeliest responses were not asked for.
    """

    level: float
    problems: int
    sampled: Answers | None
    greedy: Answers | None

    @property
    def kinds(self) -> dict[str, Answers]:
        """Return what there is of both, sampled ones first."""
        return {name: made for name, made in (("sampled", self.sampled), ("greedy", self.greedy)) if made is not None}

    @property
    def leading(self) -> Answers:
        """Return the sampled responses, or the greedy ones where nothing was sampled."""
        return next(iter(self.kinds.values()))


@dataclass(frozen=True)
class Comparison:
    """How a later point differs from an earlier one on the same problems.

    Attributes:
        basis: ``"sampled"`` or ``"greedy"``, whichever ``change`` is of.
        change: in success.
        permutation_p: of the paired permutation test of sampled responses; None where there are none.
        mcnemar_p: of McNemar's exact test of greedy ones; None where there are none.
        lost: problems that only the earlier point answers right greedily.
        gained: problems that only the later point does.
    """

    basis: str
    change: Rate
    permutation_p: float | None
    mcnemar_p: float | None
    lost: int
    gained: int


@dataclass(frozen=True)
class FormatShare:
    """What part of the whole gain on the test problems is format.

    Attributes:
        gain: the whole.
        format: the part that more responses in format make.
        accuracy: the part that more right ones among these make.
        in_format: share of responses in format, before and after.
        right_in_format: share right among those, before and after; None where none is in format.
    """

    gain: Rate
    format: Rate
    accuracy: Rate
    in_format: tuple[float, float]
    right_in_format: tuple[float | None, float | None]


@dataclass(frozen=True)
class Bound:
    """What is certain about mean success on the test problems.

    Attributes:
        low: it is at least this.
        high: it is at most this.
        problems: over which it is the mean.
        whole: problems whose response tree was seen whole.
        passes: forward passes it took.
    """

    low: float
    high: float
    problems: int
    whole: int
    passes: int
