"""Three verdicts, three exit codes: what every claim, audit and verification answers with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """The outcome of checking one claim. There is no fourth."""

    HOLDS = "holds"
    DISAGREES = "disagrees"
    COULD_NOT_RUN = "could not run"


@dataclass(frozen=True)
class Claim:
    """One claim, what was found, and how it is known.

    Attributes:
        name: the claim in a word or two, such as ``"intact"``.
        verdict: the outcome.
        detail: one line of plain words: what was compared, or why it could not run.
        findings: the witnesses, one line each; each names the file or the parameter it is about.
    """

    name: str
    verdict: Verdict
    detail: str
    findings: tuple[str, ...] = ()

    @property
    def figures(self) -> str:
        """Return what was measured, in brackets after the detail; a claim in words has none."""
        return ""

    def __str__(self) -> str:
        head = f"{self.verdict}  {self.name}: {self.detail}{self.figures}"
        return "\n".join([head, *(f"    {finding}" for finding in self.findings)])


def overall(claims: Iterable[Claim]) -> Verdict:
    """Return the verdict of all claims together: any disagreement wins, then any that could not run."""
    verdicts = {claim.verdict for claim in claims}
    for verdict in (Verdict.DISAGREES, Verdict.COULD_NOT_RUN):
        if verdict in verdicts:
            return verdict
    return Verdict.HOLDS


class Judged:
    """What has claims, and with them a verdict."""

    claims: tuple[Claim, ...]

    @property
    def verdict(self) -> Verdict:
        """Return the verdict of all claims together."""
        return overall(self.claims)

    @property
    def holds(self) -> bool:
        """Return whether every claim holds."""
        return self.verdict is Verdict.HOLDS


def exit_code(verdict: Verdict) -> int:
    """Return 0 for *holds*, 1 for *disagrees*, 2 for *could not run*."""
    return {Verdict.HOLDS: 0, Verdict.DISAGREES: 1, Verdict.COULD_NOT_RUN: 2}[verdict]
