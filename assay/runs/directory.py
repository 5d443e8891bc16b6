"""The run directory: created once, held by one process, written so that a kill at any moment loses nothing."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assay.errors import RunError
from assay.evidence.files import resume_command


def to_json(value: Any) -> bytes:
    """Return JSON text with one entry a line, in the order given. NaN and infinity are refused."""
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


@contextmanager
def named_errors(place: Path) -> Iterator[None]:
    """Turn an error of the file system into one that names the place and the remedy."""
    remedies = {
        errno.ENOSPC: "free some space",
        errno.EDQUOT: "free some space",
        errno.EROFS: "the file system is read-only; choose another place",
        errno.EACCES: "check its permissions or choose another place",
        errno.EPERM: "check its permissions or choose another place",
        errno.ENOTDIR: "part of the path is a file; choose another place",
        errno.EEXIST: "part of the path is a file; choose another place",
        errno.ENAMETOOLONG: "choose a shorter name",
    }
    try:
        yield
    except RunError:
        raise
    except OSError as error:
        remedy = remedies.get(error.errno or 0, "check the path")
        raise RunError(f"{place}: {os.strerror(error.errno or 0)}; {remedy}") from error


def create(directory: Path) -> None:
    """Create a run directory that must not exist yet, with its parents.

    Raises:
        RunError: it exists (a run is never overwritten or added to), or cannot be created.
    """
    with named_errors(directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
        try:
            directory.mkdir()
        except FileExistsError as error:
            raise RunError(
                f"{directory}: exists already; a run is never overwritten or added to, choose a new --output "
                f"(or continue an unfinished run with: {resume_command(directory)})"
            ) from error


@contextmanager
def removed_on_failure(directory: Path) -> Iterator[None]:
    """Remove a directory just created when setting it up fails, so that a failed start leaves nothing."""
    try:
        yield
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Hold a run directory for this process alone. The hold ends with the process, however it ends.

    Raises:
        RunError: another process holds it, or it does not exist.
    """
    if not directory.is_dir():
        raise RunError(f"{directory}: no such run directory; check the path")
    with named_errors(directory):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(
                f"{directory}: another process is working on this run; wait for it, or choose a new --output"
            ) from error
        yield
    finally:
        os.close(descriptor)


def write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: a neighbour is written, flushed to disk, and renamed over it.

    Raises:
        RunError: no space, no permission. The old file, if there was one, is still there.
    """
    partial = path.with_name(f".{path.name}.partial")
    with named_errors(path):
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_new(path: Path, data: bytes) -> None:
    """Write a file that must not exist, with its parents. One with the same content is left as it is.

    Raises:
        RunError: it exists with another content, or cannot be written.
    """
    with named_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.read_bytes() == data:
            return
        if path.exists() or path.is_symlink():
            raise RunError(f"{path}: exists already with another content and is not overwritten; choose another name")
    write(path, data)


class Journal:
    """A file of one JSON object a line that only grows while a run lasts.

    Args:
        path: the file; created when absent.
        keep: lines to keep; later ones, written after the checkpoint a run is resumed from, are cut off. None
            keeps all.

    Raises:
        RunError: fewer whole lines are there than must be kept, or the file cannot be written.
    """

    def __init__(self, path: Path, *, keep: int | None) -> None:
        self.path = path
        with named_errors(path):
            self._file = path.open("a+b", buffering=0)
            self._file.seek(0)
            lines = self._file.read().splitlines(keepends=True)
            whole = [line for line in lines if line.endswith(b"\n")]
            if keep is not None and len(whole) < keep:
                self._file.close()
                raise RunError(
                    f"{path}: holds {len(whole)} whole lines where the checkpoint follows {keep}; "
                    "the history is damaged, start a new run"
                )
            self._file.truncate(sum(map(len, whole[:keep])))

    def append(self, record: dict[str, Any]) -> None:
        """Write one record and hand it to the operating system."""
        with named_errors(self.path):
            line = json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
            if self._file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def sync(self) -> None:
        """Wait until what was appended is on the disk."""
        with named_errors(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
