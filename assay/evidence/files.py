"""Reading what a stranger handed over: regular files of a bounded size, and text that a terminal cannot act on."""

from __future__ import annotations

import json
import math
import shlex
import stat
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assay.errors import AssayError, EvidenceError, RunError

SIZE_LIMIT = 2**28
"""Largest file that is read whole, in bytes."""
LINE_LIMIT = 2**26
"""Longest line of a file that is read line by line, in bytes."""


def oddity(path: Path) -> str | None:
    """Say why a path is not a regular file, without opening it; None when it is one.

    Raises:
        OSError: there is nothing at this path.
    """
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return "is a symbolic link; a run holds regular files only"
    return None if stat.S_ISREG(mode) else "is not a regular file"


def entries(place: Path, *, depth: int = 1) -> dict[str, Path]:
    """Return what lies in a directory, by relative name with ``/``; links are listed and not followed.

    Args:
        place: the directory.
        depth: levels that are looked into. A directory that is empty or at the last level is an entry itself.

    Raises:
        OSError: a directory cannot be read.
    """
    found: dict[str, Path] = {}
    waiting = [("", place)]
    while waiting:
        prefix, folder = waiting.pop()
        for path in folder.iterdir():
            name = prefix + path.name
            if name.count("/") + 1 < depth and stat.S_ISDIR(path.lstat().st_mode) and any(path.iterdir()):
                waiting.append((f"{name}/", path))
            else:
                found[name] = path
    return found


def read_regular(path: Path) -> bytes:
    """Read a regular file whole.

    Raises:
        EvidenceError: it is a link, a pipe, a device or a directory, none of which is opened, or too large.
        RunError: it is missing or cannot be read.
    """
    try:
        if odd := oddity(path):
            raise EvidenceError(f"{path}: {odd}; not opened")
        if path.stat().st_size > SIZE_LIMIT:
            raise EvidenceError(f"{path}: larger than {SIZE_LIMIT >> 20} MiB; not read")
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: cannot read ({error.strerror}); check the path and its permissions") from error


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        EvidenceError: it is not a regular file of a bounded size, not JSON, names an entry twice (readers would
            not agree on its value), or holds a number that is not finite.
        RunError: it is missing or cannot be read.
    """
    return _parse(path, parse_json)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; raises as :func:`read_json`."""
    settings: dict[str, Any] = _parse(path, tomllib.loads)
    return settings


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read a file of one JSON object a line; raises as :func:`read_json`, naming the line."""
    return [_row(path, number, line) for number, line in enumerate(_parse(path, _lines), 1)]


def each_row(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of one JSON object a line, of any size, one line in memory at a time.

    Raises:
        EvidenceError: as :func:`read_json`, naming the line; or a line is longer than ``LINE_LIMIT``.
        RunError: it is missing or cannot be read.
    """
    number = 0
    try:
        if odd := oddity(path):
            raise EvidenceError(f"{path}: {odd}; not opened")
        with path.open("rb") as file:
            while line := file.readline(LINE_LIMIT):
                number += 1
                if not line.endswith(b"\n"):
                    what = "is cut short" if len(line) < LINE_LIMIT else f"is longer than {LINE_LIMIT >> 20} MiB"
                    raise EvidenceError(f"{path}: line {number} {what}")
                yield _row(path, number, line)
    except OSError as error:
        raise RunError(f"{path}: cannot read ({error.strerror}); check the path and its permissions") from error


@contextmanager
def entries_of(where: str) -> Iterator[None]:
    """Turn whatever a missing or odd entry of a parsed file leads to into an error that names the file.

    Args:
        where: the file or files that are read inside.

    Raises:
        EvidenceError: an entry is missing or of the wrong kind.
    """
    try:
        yield
    except AssayError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError) as error:
        raise EvidenceError(
            f"{where}: an entry is missing or of the wrong kind ({type(error).__name__}: {error})"
        ) from error


def resume_command(place: Path) -> str:
    """Return the command that continues a run, as a shell can read it."""
    return f"assay train --resume {shlex.quote(str(place))}"


def local(error: Exception, place: Path) -> str:
    """Return an error's message with the run's own files named relative to it."""
    return str(error).replace(f"{place}/", "")


def printable(text: str) -> str:
    """Return text as one line, with every character spelled out that could move a cursor or pass for another line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _parse(path: Path, parse: Callable[[str], Any]) -> Any:
    data = read_regular(path)
    try:
        return parse(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise EvidenceError(f"{path}: cannot be parsed ({error})") from error


def _row(path: Path, number: int, line: str | bytes) -> dict[str, Any]:
    try:
        row = parse_json(line if isinstance(line, str) else line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise EvidenceError(f"{path}: line {number} is not JSON ({error})") from error
    if not isinstance(row, dict):
        raise EvidenceError(f"{path}: line {number} is not a JSON object")
    return row


def _lines(text: str) -> list[str]:
    *lines, rest = text.split("\n")
    if rest:
        raise ValueError("its last line is cut short")
    return lines


def parse_json(text: str) -> Any:
    """Parse JSON text; a name that occurs twice in an object and a number that is not finite are refused.

    Raises:
        ValueError, RecursionError: it is not such JSON.
    """
    return json.loads(text, parse_float=_finite, parse_constant=_finite, object_pairs_hook=_unique)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:24]} is not a finite number")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        name, count = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"entry {name!r} occurs {count} times")
    return record
