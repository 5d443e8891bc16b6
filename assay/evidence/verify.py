"""Is a run directory intact, and is it complete? Answered from its files alone, with the standard library alone.

*Intact*: every file is what ``SHA256SUMS`` says, nothing was added or taken away. *Complete*: the files belong
to one finished run: manifest and provenance bind them, the history has every planned step and adds up, the
reference never changed. Whether the numbers follow from the weights is a third question, which needs torch:
:mod:`assay.runs.verify`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from assay.errors import EvidenceError, RunError
from assay.evidence import sums
from assay.evidence.binding import check_manifest, check_provenance
from assay.evidence.digest import file_digest
from assay.evidence.files import entries, entries_of, local, oddity, read_json, read_rows, read_toml, resume_command
from assay.evidence.history import check_history
from assay.evidence.language import contents as language
from assay.evidence.language.data import check_data
from assay.evidence.language.history import check_language_history
from assay.evidence.language.samples import check_samples
from assay.evidence.language.weights import check_digests, check_weights
from assay.evidence.manifest import MANIFEST, PROVENANCE, SEED, Contents
from assay.verdicts import Claim, Verdict

Digest = Callable[[Path], str]
Check = tuple[Callable[[Path], list[str]], tuple[str, ...]]
"""What returns findings, and the files without which it is not asked."""


@dataclass(frozen=True)
class Kind:
    """How the runs of one format are checked.

    Attributes:
        contents: what a run must hold, given what lies in its directory.
        depth: levels of directories that it may have.
        checks: beside those of the manifest and the provenance.
        words: what holds when nothing is found.
    """

    contents: Callable[[Path], Contents]
    depth: int
    checks: tuple[Check, ...]
    words: str


def verify_files(directory: str | Path) -> list[Claim]:
    """Return the claims *intact* and *complete* about a run directory.

    Raises:
        RunError: there is no such directory, it is no run, or it cannot be read.
    """
    place = Path(directory)
    if not place.is_dir():
        raise RunError(f"{place}: no such run directory; check the path")
    if not (place / "config.toml").exists() and not (place / sums.NAME).exists():
        raise RunError(f"{place}: not a run directory (neither config.toml nor {sums.NAME} in it); check the path")
    digest = functools.cache(file_digest)  # of one file once, however many claims ask
    try:
        kind = _kind_of(place)
        return [_intact(place, kind, digest), _complete(place, kind, digest)]
    except RunError:
        raise
    except OSError as error:
        raise RunError(f"{error.filename or place}: cannot read ({error.strerror}); check its permissions") from error


def _kind_of(place: Path) -> Kind:
    """Return how a run is checked: by the settings it was trained with, or by its manifest where they are damaged."""
    try:
        return LANGUAGE_KIND if "model" in read_toml(place / "config.toml") else SEED_KIND
    except (EvidenceError, RunError):
        pass
    try:
        manifest = read_json(place / MANIFEST)
    except (EvidenceError, RunError):
        return SEED_KIND
    named = isinstance(manifest, dict) and manifest.get("format") == language.FORMAT
    return LANGUAGE_KIND if named else SEED_KIND


def _intact(place: Path, kind: Kind, digest: Digest) -> Claim:
    if not (place / sums.NAME).exists():
        return Claim("intact", *_unsealed(place))
    findings = sums.check_sums(place, depth=kind.depth, digest=digest)
    if findings:
        return Claim("intact", Verdict.DISAGREES, f"{len(findings)} difference(s) from {sums.NAME}", tuple(findings))
    return Claim("intact", Verdict.HOLDS, f"every file has the sha256 in {sums.NAME}, none added, none missing")


def _unsealed(place: Path) -> tuple[Verdict, str, tuple[str, ...]]:
    """Say why there are no sums: the run has not finished, or they were taken away."""
    if (place / "results.json").exists() and (place / MANIFEST).exists():
        remedy = f"where that was interrupted, finish it with: {resume_command(place)}"
        finding = f"{sums.NAME}: is missing: taken away, or never written, since it comes last; {remedy}"
        return Verdict.DISAGREES, "the run is not sealed", (finding,)
    return Verdict.COULD_NOT_RUN, f"the run has not finished; continue it with: {resume_command(place)}", ()


def _complete(place: Path, kind: Kind, digest: Digest) -> Claim:
    contents, present = kind.contents(place), entries(place, depth=kind.depth)
    missing = [name for name in contents.files if name not in present or oddity(present[name])]
    if missing and not (place / sums.NAME).exists() and not (place / MANIFEST).exists():
        return Claim("complete", Verdict.COULD_NOT_RUN, f"the run has not finished: no {', '.join(missing)}")
    findings = [f"{name}: is missing or no regular file" for name in missing]
    extra = sorted(set(present) - {*contents.files, sums.NAME})
    findings += [f"{name}: is no file of a run" for name in extra]
    bound: tuple[Check, ...] = (
        (lambda place: check_manifest(place, contents, digest), (MANIFEST, *contents.bound)),
        (lambda place: check_provenance(place, contents), (PROVENANCE, MANIFEST, "timing.jsonl", *contents.inputs)),
    )
    for check, names in (*bound, *kind.checks):
        if set(names) & set(missing):
            continue
        try:
            findings += check(place)
        except EvidenceError as error:
            findings.append(local(error, place))
    if findings:
        return Claim("complete", Verdict.DISAGREES, f"{len(findings)} finding(s)", tuple(findings))
    return Claim("complete", Verdict.HOLDS, kind.words)


@entries_of("results.json")
def _check_reference(place: Path) -> list[str]:
    digests = read_json(place / "results.json")["reference_digests"]
    ends = {"rl 0", "end"} - set(digests)
    if ends or len(set(digests.values())) != 1:
        return ["results.json: the reference's digest is not the same at the start of RL, every checkpoint and the end"]
    return []


@entries_of("metrics.jsonl, config.toml or results.json")
def _check_history(place: Path) -> list[str]:
    return check_history(
        read_rows(place / "metrics.jsonl"), read_toml(place / "config.toml"), read_json(place / "results.json")
    )


SEED_KIND = Kind(
    contents=lambda place: SEED,
    depth=1,
    checks=(
        (_check_reference, ("results.json",)),
        (_check_history, ("metrics.jsonl", "config.toml", "results.json")),
    ),
    words="manifest and provenance bind every file, the history has every planned step and adds up, "
    "the reference never changed",
)
LANGUAGE_KIND = Kind(
    contents=language.contents_of,
    depth=language.DEPTH,
    checks=(
        (check_weights, ("config.toml", "checkpoint/optimizer.safetensors")),
        (check_digests, ("config.toml", "results.json", "metrics.jsonl")),
        (check_data, ("data.json", "data/croissant.json", "data/train.jsonl", "data/test.jsonl")),
        (check_samples, ("samples.jsonl", "results.json", "config.toml", "data/train.jsonl", "data/test.jsonl")),
        (check_language_history, ("metrics.jsonl", "config.toml", "results.json", "data/train.jsonl")),
    ),
    words="manifest and provenance bind every file, weights and data are those recorded, the history has every "
    "planned step and adds up, the samples give the reported rates, the reference never changed",
)
