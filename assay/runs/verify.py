"""Verification of a run directory: intact, complete, reproduced, each answered apart.

The first two need the standard library alone; the third reloads the checkpoint and recomputes every reported number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from assay.evidence.verify import verify_files
from assay.runs.kind import is_language_run
from assay.verdicts import Claim, Judged, Verdict


@dataclass(frozen=True)
class Verification(Judged):
    """What was found out about a run.

    Attributes:
        directory: the run.
        claims: *intact*, *complete*, *reproduced*, and *replayed* when asked for.
    """

    directory: Path
    claims: tuple[Claim, ...]


def verify(directory: str | Path, *, replay: bool = False) -> Verification:
    """Check a run: are its files what was sealed, do they make one whole run, and do its numbers follow from
    its weights?

    *Reproduced* reloads ``checkpoint.pt`` (tensors only; nothing in it is executed) and recomputes success, KL,
    the independent samples, per-tensor changes and the report. The recorded steps themselves are bound by
    digests and checked for consistency; only ``replay`` computes them again.

    Args:
        directory: the run.
        replay: also train the same recipe again, into a temporary directory, and compare.

    Raises:
        RunError: there is no such run, or it cannot be read.
    """
    place = Path(directory)
    claims = verify_files(place)
    try:
        recompute, retrain = _reproduction(place)
    except ImportError as error:
        if str(error.name).startswith("assay"):
            raise
        reason = f"needs {error.name}, which is not installed; the files were checked without it"
        claims.append(Claim("reproduced", Verdict.COULD_NOT_RUN, reason))
    else:
        claims.append(recompute(place))
        if replay:
            claims.append(retrain(place))
    return Verification(place, tuple(claims))


def _reproduction(place: Path) -> tuple[Callable[[Path], Claim], Callable[[Path], Claim]]:
    """Return what recomputes a run of this kind, and what trains it again."""
    if is_language_run(place):
        from assay.runs.language.verify import recompute_language, replay_language

        return recompute_language, replay_language
    from assay.runs import reproduce

    return reproduce.recompute, reproduce.replay
