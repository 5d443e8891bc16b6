"""What an audit of a loss found out, as values, as words, as JSON."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from assay.audit.curl import CURL_ROUNDING, Curl
from assay.audit.subjects import Subject
from assay.tree.attribution import Attribution
from assay.verdicts import Claim, Judged
from assay.version import __version__


@dataclass(frozen=True)
class LossReport(Judged):
    """What an audit found out about a loss.

    Attributes:
        name: of the loss.
        objective: what it was said to ascend.
        claims: each with its verdict and witnesses.
        group_size: responses in a group.
        world: where it was audited, in words.
        versions: of the packages that ran.
        subject: the loss, and what is known about it.
        ascends: what its expected gradient is, in terms of known fields, over all problems at once.
        by_problem: the same for each problem alone; a loss may weigh problems differently.
        curl: how far the field is from being the gradient of anything; None where that was not measured.
        because: what is known about why it is not what was stated, in words.
        variance: trace of the estimate's covariance, a group of each problem.
        variance_ratio: that, over the variance of leave-one-out on the reward with as many responses.
        exactness: what was gone through.
    """

    name: str
    objective: str
    claims: tuple[Claim, ...]
    group_size: int | tuple[int, ...]
    world: str
    versions: Mapping[str, str]
    subject: Subject
    ascends: Attribution | None = None
    by_problem: Mapping[str, Attribution] = field(default_factory=dict)
    curl: Curl | None = None
    because: str = ""
    variance: float | None = None
    variance_ratio: float | None = None
    exactness: str = ""

    def __str__(self) -> str:
        lines = [f"{self.name} against {self.objective}: {self.verdict}"]
        return "\n".join([*lines, *map(str, self.claims), *self.in_words()])

    def record(self) -> dict[str, Any]:
        """Return the report as plain values, ready for JSON; what could not be measured is None."""
        made = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self) if entry.name != "subject"}
        made["claims"] = [dataclasses.asdict(claim) for claim in self.claims]
        made["curl"] = None if self.curl is None else dataclasses.asdict(self.curl)
        made["ascends"] = None if self.ascends is None else dataclasses.asdict(self.ascends)
        made["by_problem"] = {name: dataclasses.asdict(part) for name, part in self.by_problem.items()}
        about = {name: getattr(self.subject, name) for name in ("settings", "estimand", "reaches", "misses")}
        return {"verdict": self.verdict, **made, **about, "in_words": self.in_words()}

    def in_words(self) -> list[str]:
        """Return what the loss ascends, in words and coefficients, and what would mend it."""
        lines = []
        if self.ascends is not None:
            because = f": {self.because}" if self.because else ""
            lines.append(f"ascends: {describe(self.ascends)}{because}")
            if not self.ascends.exact:
                lines += [f"  {name}: {describe(made)}" for name, made in self.by_problem.items()]
        if self.curl is not None:
            what = "the gradient of some scalar" if self.curl.asymmetry <= CURL_ROUNDING else "the gradient of nothing"
            lines.append(
                f"the field is {what}: asymmetry of its derivative {self.curl.asymmetry:.2g}, in groups of "
                f"{' and '.join(map(str, dict.fromkeys(self.curl.sizes)))}"
            )
        if self.variance is not None:
            ratio = (
                "" if self.variance_ratio is None else f", {self.variance_ratio:.4g} times leave-one-out's on-policy"
            )
            lines.append(f"variance, of one group of {self.group_size} of each problem: {self.variance:.4g}{ratio}")
        lines += [
            f"to mend it: {made}" for made in dict.fromkeys(getattr(c, "remedy", "") for c in self.claims) if made
        ]
        for title, text in (
            ("stated", self.subject.estimand),
            ("reaches", self.subject.reaches),
            ("not reached", self.subject.misses),
        ):
            lines += [f"{title}: {text}"] if text else []
        lines.append(f"world: {self.world}")
        lines.append("versions: " + ", ".join(f"{name} {version}" for name, version in self.versions.items()))
        return lines


def describe(made: Attribution) -> str:
    """Return an attribution in words."""
    if not made.coefficients:
        return "nothing, its expected gradient is zero"
    terms = " + ".join(f"{value:.6g} x gradient of {name}" for name, value in made.coefficients.items())
    terms = terms.replace("+ -", "- ")
    if made.exact:
        return f"{terms} (residual {made.residual:.0e})"
    return f"no combination of known objectives that was tried; as declared, {terms} leaves {made.residual:.1%}"


def packages(subject: Subject) -> dict[str, str]:
    """Return the versions that a report rests on."""
    ours = {"assay": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return {**subject.versions, **ours}
