"""Which kind of run a directory holds, told from its settings alone."""

from __future__ import annotations

from pathlib import Path

from assay.errors import EvidenceError, RunError
from assay.evidence.files import read_toml


def is_language_run(place: Path) -> bool:
    """Return whether a run directory is that of a language model; False where it cannot be told."""
    try:
        return "model" in read_toml(place / "config.toml")
    except (RunError, EvidenceError):
        return False
