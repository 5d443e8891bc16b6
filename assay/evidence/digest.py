"""Digests of files and of the package's own source."""

from __future__ import annotations

import hashlib
from pathlib import Path

SOURCE_SUFFIXES = {".py", ".j2", ".css"}


def file_digest(path: Path) -> str:
    """Return the sha256 of a file as hex.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def source_digest(package: Path) -> str:
    """Return one sha256 over every source file of a package: sorted lines of ``digest  relative/path``."""
    files = sorted(path for path in package.rglob("*") if path.suffix in SOURCE_SUFFIXES and path.is_file())
    lines = (f"{file_digest(path)}  {path.relative_to(package).as_posix()}\n" for path in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
