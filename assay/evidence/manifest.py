"""The manifest and the provenance statement: which source, data and settings gave which weights and numbers.

``manifest.json`` holds no clock: two runs of one recipe on one machine and build have the same manifest, byte
for byte. ``provenance.intoto.json`` says the same to other people's tools, as an in-toto Statement v1 with a
SLSA provenance v1 predicate, and adds when the run started and finished.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.evidence.digest import file_digest

MANIFEST = "manifest.json"
PROVENANCE = "provenance.intoto.json"
FORMAT = "assay-run/1"
BOUND = (
    "config.toml",
    "data.json",
    "environment.json",
    "checkpoint.pt",
    "metrics.jsonl",
    "results.json",
)
"""The files that the manifest binds together. None of them holds a clock."""
UNBOUND = ("timing.jsonl", MANIFEST, PROVENANCE, "report.html")
"""What else a finished run holds, beside ``SHA256SUMS``: evidence, and what holds a clock."""
FILES = (*BOUND, *UNBOUND)
"""Every file of a finished run but ``SHA256SUMS`` itself."""

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "assay:train/v1"
INPUTS = ("config.toml", "data.json", "environment.json")


@dataclass(frozen=True)
class Contents:
    """What a run of one format holds.

    Attributes:
        format: name and version of the format.
        build_type: what the provenance calls the training that made it.
        inputs: the bound files that training was given.
        bound: every file that the manifest binds, the inputs included.
    """

    format: str
    build_type: str
    inputs: tuple[str, ...]
    bound: tuple[str, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """Return every file of a finished run but ``SHA256SUMS`` itself."""
        return (*self.bound, *UNBOUND)


SEED = Contents(FORMAT, BUILD_TYPE, INPUTS, BOUND)
"""A run of the seed experiment."""


def build_manifest(
    directory: Path,
    environment: dict[str, Any],
    contents: Contents = SEED,
    *,
    digest: Callable[[Path], str] = file_digest,
) -> dict[str, Any]:
    """Return the manifest of a finished run.

    Args:
        directory: holds every bound file.
        environment: the content of ``environment.json``; its ``source`` is the digest of the package.
        contents: what the run holds.
        digest: of a file, as hex.
    """
    return {
        "format": contents.format,
        "source": environment["source"],
        "files": {name: digest(directory / name) for name in contents.bound},
    }


def build_provenance(
    manifest: dict[str, Any],
    config: dict[str, Any],
    environment: dict[str, Any],
    contents: Contents = SEED,
    *,
    started: str,
    finished: str,
) -> dict[str, Any]:
    """Return the in-toto statement of a finished run.

    Args:
        manifest: from :func:`build_manifest`.
        config: every setting of the run.
        environment: the content of ``environment.json``.
        contents: what the run holds.
        started: RFC 3339 time.
        finished: RFC 3339 time.
    """
    files = manifest["files"]

    def artefact(name: str) -> dict[str, Any]:
        return {"name": name, "digest": {"sha256": files[name]}}

    packages = [
        {"name": name, "uri": f"pkg:pypi/{name}@{version.split('+')[0]}"}
        for name, version in environment["packages"].items()
    ]
    return {
        "_type": STATEMENT_TYPE,
        "subject": [artefact(name) for name in files if name not in contents.inputs],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": contents.build_type,
                "externalParameters": config,
                "internalParameters": {key: value for key, value in environment.items() if key != "packages"},
                "resolvedDependencies": [
                    {"name": "assay source", "uri": "assay:source", "digest": {"sha256": manifest["source"]}},
                    *(artefact(name) for name in contents.inputs),
                    *packages,
                ],
            },
            "runDetails": {
                "builder": {"id": "assay:train", "version": {"assay": environment["assay"]}},
                "metadata": {"startedOn": started, "finishedOn": finished},
            },
        },
    }
