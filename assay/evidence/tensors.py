"""Safetensors files, read by their headers alone: names, types, shapes and places, and the digest of what they hold."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.errors import EvidenceError, RunError
from assay.evidence.files import oddity, parse_json

HEADER_LIMIT = 10**8
"""Longest header in bytes; the format's own limit."""
DTYPES = {
    "F64": ("<f8", 8),
    "F32": ("<f4", 4),
    "F16": ("<f2", 2),
    "BF16": ("bfloat16", 2),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "I64": ("<i8", 8),
    "I32": ("<i4", 4),
    "I16": ("<i2", 2),
    "I8": ("|i1", 1),
    "U8": ("|u1", 1),
    "BOOL": ("|b1", 1),
}
"""The types that a run's tensors may have: the format's name to the one in a digest, and bytes an element."""
_CHUNK = 2**20
_RANK_LIMIT, _SIZE_LIMIT = 16, 2**48


@dataclass(frozen=True)
class Entry:
    """One tensor of a file.

    Attributes:
        dtype: the format's name of its type, a key of ``DTYPES``.
        shape: its sizes.
        start: first byte, counted from the start of the file.
        size: in bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


def read_header(path: Path) -> dict[str, Entry]:
    """Return the tensors of a safetensors file by name, without reading them.

    Raises:
        EvidenceError: it is no regular file; the header is cut short, too long, or no such header; a type is
            unknown; or the tensors do not fill the rest of the file, each in its place, without gap or overlap.
        RunError: it is missing or cannot be read.

    Source: the safetensors format, https://github.com/huggingface/safetensors#format
    """
    try:
        if odd := oddity(path):
            raise EvidenceError(f"{path}: {odd}; not opened")
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(HEADER_LIMIT, size - 8):
                raise EvidenceError(f"{path}: its header of {length} bytes does not fit in {size} bytes of file")
            header = file.read(length)
    except OSError as error:
        raise RunError(f"{path}: cannot read ({error.strerror}); check the path and its permissions") from error
    try:
        record = parse_json(header.decode("utf-8"))
        found = {name: _entry(name, value, 8 + length) for name, value in record.items() if name != "__metadata__"}
        _check_metadata(record.get("__metadata__", {}))
        _check_places(found, 8 + length, size)
    except (ValueError, RecursionError, TypeError, LookupError, AttributeError) as error:
        raise EvidenceError(f"{path}: not a safetensors header ({error})") from error
    return found


def tensors_digest(paths: Iterable[Path]) -> str:
    """Return the sha256 of the tensors of some files, in the order of their names, as hex.

    It is that of :func:`assay.core.digest.model_digest` of the model that was saved in them, however many files there
    are. A file is read a piece at a time.

    Raises:
        EvidenceError, RunError: as :func:`read_header`; or two files hold a tensor of one name.
    """
    places: dict[str, tuple[Path, Entry]] = {}
    for path in paths:
        for name, entry in read_header(path).items():
            if name in places:
                raise EvidenceError(f"{path}: holds {name!r}, which {places[name][0].name} holds too")
            places[name] = path, entry
    digest = hashlib.sha256()
    for name, (path, entry) in sorted(places.items()):
        digest.update(f"{name} {DTYPES[entry.dtype][0]} {entry.shape}\n".encode())
        with path.open("rb") as file:
            file.seek(entry.start)
            left = entry.size
            while left and (chunk := file.read(min(left, _CHUNK))):
                digest.update(chunk)
                left -= len(chunk)
    return digest.hexdigest()


def _entry(name: str, record: dict[str, Any], start: int) -> Entry:
    if set(record) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{name!r} must have dtype, shape and data_offsets, it has {sorted(record)}")
    dtype, shape, (first, end) = record["dtype"], record["shape"], record["data_offsets"]
    if dtype not in DTYPES:
        raise ValueError(f"{name!r} has type {dtype!r}; a run's tensors have one of {', '.join(DTYPES)}")
    if not all(type(count) is int and 0 <= count < _SIZE_LIMIT for count in (*shape, first, end)):
        raise ValueError(f"{name!r} has shape {shape} at {first} to {end}; these must be counts")
    if len(shape) > _RANK_LIMIT or math.prod(shape) * DTYPES[dtype][1] != end - first:
        raise ValueError(f"{name!r} has {dtype} and shape {shape}, which do not fill bytes {first} to {end}")
    return Entry(dtype, tuple(shape), start + first, end - first)


def _check_metadata(metadata: dict[str, Any]) -> None:
    if not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("__metadata__ must hold text alone")


def _check_places(found: dict[str, Entry], start: int, size: int) -> None:
    for name, entry in sorted(found.items(), key=lambda pair: (pair[1].start, pair[1].size)):
        if entry.start != start:
            raise ValueError(f"{name!r} starts at byte {entry.start} of the file, the one before it ends at {start}")
        start += entry.size
    if start != size:
        raise ValueError(f"its tensors end at byte {start}, the file at {size}")
