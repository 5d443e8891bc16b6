"""Rows of data from where a user has them: JSONL, CSV and Parquet files, a function, or rows at hand.

Nothing is repaired and nothing skipped: a line that cannot be read is named and refused.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.errors import ConfigError
from assay.tasks.named import find_function, working_directory_importable

MOST_NAMED = 3
"""How many bad lines a message names."""


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        place: where it stands, such as ``"problems.jsonl line 3"``.
        values: by column.
    """

    place: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Rows:
    """All rows of one source.

    Attributes:
        source: a file's name as given, a function's, or ``"rows"``.
        sha256: of the file's bytes; of the rows as JSON where there is no file.
        rows: at least one.
    """

    source: str
    sha256: str
    rows: tuple[Row, ...]


def read_rows(source: str | Path | Iterable[Any]) -> Rows:
    """Read every row of a source.

    Args:
        source: a path that ends in ``.jsonl``, ``.csv`` or ``.parquet``; ``"package.module:function"``, a function that
            returns rows; or the rows, such as a ``datasets.Dataset`` or a list of dicts. A row maps columns to values.

    Raises:
        ConfigError: the source does not exist, cannot be read, or has no rows; the message names file and line.
    """
    if isinstance(source, str | Path):
        name = str(source)
        read = READERS.get(Path(name).suffix.lower())
        made = _from_function(name) if read is None and ":" in name else _from_file(name, read)
    else:
        made = _from_values("rows", source)
    if not made.rows:
        raise ConfigError(f"data {made.source}: no rows; need at least one problem")
    return made


def _from_file(name: str, read: Callable[[str, bytes], list[Row]] | None) -> Rows:
    if read is None:
        raise ConfigError(f"data {name!r}: expected a {', '.join(READERS)} file, gym:NAME or package.module:function")
    try:
        content = Path(name).read_bytes()
    except OSError as error:
        raise ConfigError(f"data {name}: cannot be read ({error.strerror or error}); check the path") from error
    return Rows(name, hashlib.sha256(content).hexdigest(), tuple(read(name, content)))


def _from_function(name: str) -> Rows:
    function = find_function(name, "data")
    try:
        with working_directory_importable():
            return _from_values(name, function())
    except ConfigError:
        raise
    except Exception as error:  # someone else's function
        raise ConfigError(f"data {name!r}: it raised {type(error).__name__}: {error}") from error


def _from_values(source: str, values: Any) -> Rows:
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__iter__"):
        remedy = (
            "choose one of its splits" if isinstance(values, Mapping) else "expected rows that map columns to values"
        )
        raise ConfigError(f"data {source}: {type(values).__name__} is not a list of rows; {remedy}")
    rows = []
    for number, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise ConfigError(f"data {source} row {number}: {_short(value)} is no row; expected columns and values")
        rows.append(Row(f"{source} row {number}", dict(value)))
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row.values, default=repr).encode() + b"\n")
    return Rows(source, digest.hexdigest(), tuple(rows))


def _from_jsonl(name: str, content: bytes) -> list[Row]:
    rows, bad = [], []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append(Row(f"{name} line {number}", _object(line)))
        except (ValueError, RecursionError) as error:
            bad.append(f"line {number}: {error}")
    if bad:
        more = f" (and {len(bad) - MOST_NAMED} more lines)" if len(bad) > MOST_NAMED else ""
        raise ConfigError(f"data {name} cannot be read; {'; '.join(bad[:MOST_NAMED])}{more}")
    return rows


def _object(line: bytes) -> dict[str, Any]:
    """Return the object on a line; each key once and every number finite."""
    value = json.loads(line.decode(), object_pairs_hook=_distinct, parse_constant=_refuse)
    if not isinstance(value, dict):
        raise ValueError(f"{_short(value)} is not an object")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} comes twice")
    return made


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _from_csv(name: str, content: bytes) -> list[Row]:
    """Read CSV with a header; an empty cell is None."""
    rows: list[Row] = []
    try:
        reader = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        header = next(reader, [])
        line = reader.line_num + 1
        if twice := [column for column in header if header.count(column) > 1]:
            raise ConfigError(f"data {name}: column {twice[0]!r} comes twice; name each column once")
        for cells in reader:
            place, line = f"{name} line {line}", reader.line_num + 1
            if not cells:
                continue
            if len(cells) != len(header):
                raise ConfigError(
                    f"data {place}: {len(cells)} cells for {len(header)} columns; quote cells with commas"
                )
            rows.append(Row(place, {key: cell or None for key, cell in zip(header, cells, strict=True)}))
    except UnicodeDecodeError as error:
        bad = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"data {name} line {bad}: not UTF-8 ({error.reason}); save it as UTF-8") from error
    except csv.Error as error:
        raise ConfigError(f"data {name} line {reader.line_num}: {error}") from error
    return rows


def _from_parquet(name: str, content: bytes) -> list[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(f"data {name} needs pyarrow: pip install 'assay[tasks]'") from error
    try:
        table = pyarrow.parquet.read_table(pyarrow.BufferReader(content))
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"data {name}: not a Parquet file that can be read ({error})") from error
    return [Row(f"{name} row {number}", values) for number, values in enumerate(table.to_pylist())]


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:50]}..."


READERS: dict[str, Callable[[str, bytes], list[Row]]] = {
    ".jsonl": _from_jsonl,
    ".csv": _from_csv,
    ".parquet": _from_parquet,
}
"""What reads a file, by how its name ends."""
