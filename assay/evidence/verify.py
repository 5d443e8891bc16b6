"""Is a run directory intact, and is it complete? Answered from its files alone, with the standard library alone.

*Intact*: every file is what ``SHA256SUMS`` says, nothing was added or taken away. *Complete*: the files belong
to one finished run: manifest and provenance bind them, the history has every planned step and adds up, the
reference never changed. Whether the numbers follow from the weights is a third question, which needs torch:
:mod:`assay.runs.verify`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from assay.errors import EvidenceError, RunError
from assay.evidence import sums
from assay.evidence.files import entries_of, local, read_json, read_rows, read_toml, resume_command
from assay.evidence.history import check_history
from assay.evidence.manifest import (
    BOUND,
    FILES,
    FORMAT,
    INPUTS,
    MANIFEST,
    PREDICATE_TYPE,
    PROVENANCE,
    STATEMENT_TYPE,
    build_manifest,
    build_provenance,
)
from assay.verdicts import Claim, Verdict


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
    try:
        return [_intact(place), _complete(place)]
    except RunError:
        raise
    except OSError as error:
        raise RunError(f"{error.filename or place}: cannot read ({error.strerror}); check its permissions") from error


def _intact(place: Path) -> Claim:
    if not (place / sums.NAME).exists():
        return Claim("intact", *_unsealed(place))
    findings = sums.check_sums(place)
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


def _complete(place: Path) -> Claim:
    missing = [name for name in FILES if not (place / name).is_file() or (place / name).is_symlink()]
    if missing and not (place / sums.NAME).exists() and not (place / MANIFEST).exists():
        return Claim("complete", Verdict.COULD_NOT_RUN, f"the run has not finished: no {', '.join(missing)}")
    findings = [f"{name}: is missing or no regular file" for name in missing]
    extra = sorted({entry.name for entry in place.iterdir()} - {*FILES, sums.NAME})
    findings += [f"{name}: is no file of a run" for name in extra]
    for check, names in _CHECKS:
        if set(names) & set(missing):
            continue
        try:
            findings += check(place)
        except EvidenceError as error:
            findings.append(local(error, place))
    if findings:
        return Claim("complete", Verdict.DISAGREES, f"{len(findings)} finding(s)", tuple(findings))
    return Claim(
        "complete",
        Verdict.HOLDS,
        "manifest and provenance bind every file, the history has every planned step and adds up, "
        "the reference never changed",
    )


@entries_of(MANIFEST)
def _check_manifest(place: Path) -> list[str]:
    manifest, environment = read_json(place / MANIFEST), read_json(place / "environment.json")
    with entries_of("environment.json"):
        whole = build_manifest(place, environment)
    findings = []
    if manifest["format"] != FORMAT:
        findings.append(f"{MANIFEST}: format is {manifest['format']!r}, expected {FORMAT!r}")
    if set(manifest["files"]) != set(BOUND):
        odd = sorted(set(manifest["files"]) ^ set(BOUND))
        findings.append(f"{MANIFEST}: must bind exactly {', '.join(BOUND)}; differs in {', '.join(map(repr, odd))}")
    for name in BOUND:
        if manifest["files"].get(name) != whole["files"][name]:
            findings.append(f"{name}: is not the file that {MANIFEST} binds; it was changed or swapped")
    if manifest["source"] != whole["source"]:
        findings.append(f"{MANIFEST}: source digest differs from the one in environment.json")
    if not findings and not _same(manifest, whole):
        findings.append(f"{MANIFEST}: holds an entry that no manifest has")
    return findings


@entries_of(PROVENANCE)
def _check_provenance(place: Path) -> list[str]:
    statement, manifest = read_json(place / PROVENANCE), read_json(place / MANIFEST)
    config, environment = read_toml(place / "config.toml"), read_json(place / "environment.json")
    clock = read_rows(place / "timing.jsonl")
    with entries_of("environment.json or timing.jsonl"):
        started, finished = clock[0]["time"], clock[-1]["time"]
        whole = build_provenance(manifest, config, environment, started=started, finished=finished)
    definition = statement["predicate"]["buildDefinition"]
    findings = []
    if statement["_type"] != STATEMENT_TYPE or statement["predicateType"] != PREDICATE_TYPE:
        findings.append(f"{PROVENANCE}: not an in-toto Statement v1 with a SLSA provenance v1 predicate")
    named = {
        entry["name"]: entry["digest"]["sha256"]
        for entry in [*statement["subject"], *definition["resolvedDependencies"]]
        if "digest" in entry
    }
    expected = {**manifest["files"], "assay source": manifest["source"]}
    for name in sorted(set(named) | set(expected)):
        if named.get(name) != expected.get(name):
            findings.append(f"{PROVENANCE}: digest of {name} differs from {MANIFEST}")
    if not _same(definition["externalParameters"], config):
        findings.append(f"{PROVENANCE}: its parameters are not those of config.toml")
    if not findings and not _same(statement, whole):
        findings.append(f"{PROVENANCE}: is not the statement that environment.json and timing.jsonl give")
    return findings


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


_CHECKS: tuple[tuple[Callable[[Path], list[str]], tuple[str, ...]], ...] = (
    (_check_manifest, (MANIFEST, *BOUND)),
    (_check_provenance, (PROVENANCE, MANIFEST, "timing.jsonl", *INPUTS)),
    (_check_reference, ("results.json",)),
    (_check_history, ("metrics.jsonl", "config.toml", "results.json")),
)


def _same(recorded: Any, expected: Any) -> bool:
    """Compare as JSON, where 1, 1.0 and true are three values."""
    return json.dumps(recorded, sort_keys=True) == json.dumps(expected, sort_keys=True)
