"""Where the files of a language run lie, and directories that are replaced whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from assay.errors import RunError
from assay.runs.directory import named_errors


@dataclass(frozen=True)
class Layout:
    """The paths of a language run.

    Attributes:
        root: the run directory.
    """

    root: Path

    @property
    def config(self) -> Path:
        """Return every setting of the run."""
        return self.root / "config.toml"

    @property
    def data(self) -> Path:
        """Return what is known of the data: source, digests, counts, overlap."""
        return self.root / "data.json"

    def rows(self, split: str) -> Path:
        """Return the problems of a split, as used."""
        return self.root / "data" / f"{split}.jsonl"

    @property
    def croissant(self) -> Path:
        """Return the description of the data for other tools."""
        return self.root / "data" / "croissant.json"

    @property
    def environment(self) -> Path:
        """Return source, versions and machine."""
        return self.root / "environment.json"

    @property
    def checkpoint(self) -> Path:
        """Return the directory of the state that a run is resumed from."""
        return self.root / "checkpoint"

    @property
    def model(self) -> Path:
        """Return the directory of the final policy."""
        return self.root / "model"

    @property
    def warmup(self) -> Path:
        """Return the directory of the policy after warm-up."""
        return self.root / "warmup"

    @property
    def metrics(self) -> Path:
        """Return the record of every step."""
        return self.root / "metrics.jsonl"

    @property
    def timing(self) -> Path:
        """Return the clock of every step."""
        return self.root / "timing.jsonl"

    @property
    def samples(self) -> Path:
        """Return the evaluated responses."""
        return self.root / "samples.jsonl"

    @property
    def results(self) -> Path:
        """Return what was planned, spent and measured."""
        return self.root / "results.json"

    @property
    def report(self) -> Path:
        """Return the page to read."""
        return self.root / "report.html"


_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")


@contextmanager
def replacing(directory: Path) -> Iterator[Path]:
    """Replace a directory by one that is written inside, whole or not at all.

    What is written goes to a neighbour. When the block ends, all of it is flushed to the disk, the old directory is
    renamed out of the way and the new one takes its name. A kill at any moment leaves what :func:`settle` makes the
    old directory or the new one of.

    Yields:
        An empty directory to fill.

    Raises:
        RunError: no space, no permission. The old directory, if there was one, is still there.
    """
    partial, old = _neighbours(directory)
    with named_errors(directory):
        settle(directory)
        partial.mkdir()
        try:
            with _system_errors():
                yield partial
            _flush(partial)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        if directory.exists():
            directory.rename(old)
            _flush_folder(directory.parent)
        partial.rename(directory)
        _flush_folder(directory.parent)
        shutil.rmtree(old, ignore_errors=True)


def settle(directory: Path) -> bool:
    """Bring a directory that may have been replaced when its process was killed to the one state it had reached.

    The old directory leaves its name only once the new one is whole and on the disk. So where the name is free and an
    old one is there, the new one takes the name; where it is not free, what lies beside it is left over.

    Returns:
        Whether there is such a directory now.

    Raises:
        RunError: the file system refuses.
    """
    partial, old = _neighbours(directory)
    with named_errors(directory):
        _check_plain(directory, partial, old)
        if not directory.exists() and old.exists():
            (partial if partial.exists() else old).rename(directory)
            _flush_folder(directory.parent)
        for left in (partial, old):
            if left.exists():
                shutil.rmtree(left)
        return directory.exists()


@contextmanager
def _system_errors() -> Iterator[None]:
    """Turn what safetensors and tokenizers say of a file system, each in its own kind of error, into an OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        if not (found := _SYSTEM_ERROR.search(str(error))):
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number)) from error


def _neighbours(directory: Path) -> tuple[Path, Path]:
    return directory.with_name(f".{directory.name}.partial"), directory.with_name(f".{directory.name}.old")


def _check_plain(*paths: Path) -> None:
    for path in paths:
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise RunError(f"{path}: is in the place of a directory and is none; move it away")


def _flush(folder: Path) -> None:
    """Wait until a directory and all in it is on the disk."""
    for path in folder.iterdir():
        if path.is_dir():
            _flush(path)
        else:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    _flush_folder(folder)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
