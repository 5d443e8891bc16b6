"""Do manifest and provenance bind a run's files, and nothing else?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from assay.evidence.files import entries_of, read_json, read_rows, read_toml
from assay.evidence.manifest import (
    MANIFEST,
    PREDICATE_TYPE,
    PROVENANCE,
    STATEMENT_TYPE,
    Contents,
    build_manifest,
    build_provenance,
)


@entries_of(MANIFEST)
def check_manifest(place: Path, contents: Contents, digest: Callable[[Path], str]) -> list[str]:
    """Return where the manifest is not the one that the files give, one line a finding."""
    manifest, environment = read_json(place / MANIFEST), read_json(place / "environment.json")
    with entries_of("environment.json"):
        whole = build_manifest(place, environment, contents, digest=digest)
    bound, findings = contents.bound, []
    if manifest["format"] != contents.format:
        findings.append(f"{MANIFEST}: format is {manifest['format']!r}, expected {contents.format!r}")
    if set(manifest["files"]) != set(bound):
        odd = sorted(set(manifest["files"]) ^ set(bound))
        findings.append(f"{MANIFEST}: must bind exactly {', '.join(bound)}; differs in {', '.join(map(repr, odd))}")
    for name in bound:
        if manifest["files"].get(name) != whole["files"][name]:
            findings.append(f"{name}: is not the file that {MANIFEST} binds; it was changed or swapped")
    if manifest["source"] != whole["source"]:
        findings.append(f"{MANIFEST}: source digest differs from the one in environment.json")
    if not findings and not _same(manifest, whole):
        findings.append(f"{MANIFEST}: holds an entry that no manifest has")
    return findings


@entries_of(PROVENANCE)
def check_provenance(place: Path, contents: Contents) -> list[str]:
    """Return where the provenance is not the statement that the other files give, one line a finding."""
    statement, manifest = read_json(place / PROVENANCE), read_json(place / MANIFEST)
    config, environment = read_toml(place / "config.toml"), read_json(place / "environment.json")
    clock = read_rows(place / "timing.jsonl")
    with entries_of("environment.json or timing.jsonl"):
        started, finished = clock[0]["time"], clock[-1]["time"]
        whole = build_provenance(manifest, config, environment, contents, started=started, finished=finished)
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


def _same(recorded: Any, expected: Any) -> bool:
    """Compare as JSON, where 1, 1.0 and true are three values."""
    return json.dumps(recorded, sort_keys=True) == json.dumps(expected, sort_keys=True)
