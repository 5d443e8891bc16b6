"""``SHA256SUMS``: one line a file, in the format that ``sha256sum -c`` reads."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from assay.errors import EvidenceError
from assay.evidence.digest import file_digest
from assay.evidence.files import entries, oddity, read_regular

NAME = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def sums_text(directory: Path, names: list[str], *, digest: Callable[[Path], str] = file_digest) -> str:
    """Return the text of ``SHA256SUMS`` for some files of a directory, in sorted order."""
    return "".join(f"{digest(directory / name)}  {name}\n" for name in sorted(names))


def check_sums(directory: Path, *, depth: int = 1, digest: Callable[[Path], str] = file_digest) -> list[str]:
    """Compare a directory with its ``SHA256SUMS`` and return what is wrong, one line a finding.

    Every entry must be a regular file that the sums list, and the other way round. A name that leads out of the
    directory or deeper than the format goes is a finding and is never opened; neither is a link, a device, or a
    directory that is empty or too deep.

    Args:
        directory: the run.
        depth: levels of directories that its format has; 1 is flat.
        digest: of a file, as hex.

    Raises:
        OSError: the directory or a file in it cannot be read.
    """
    listed, findings = _read(directory / NAME, depth)
    present = {name: entry for name, entry in entries(directory, depth=depth).items() if name != NAME}
    for name, entry in sorted(present.items()):
        if odd := oddity(entry):
            findings.append(f"{name}: {odd}")
        elif name not in listed:
            findings.append(f"{name}: is not listed in {NAME}; it was added after the run was sealed")
        elif (found := digest(entry)) != listed[name]:
            findings.append(f"{name}: has sha256 {found[:16]}..., {NAME} says {listed[name][:16]}...; it was changed")
    findings += [f"{name}: is listed in {NAME} and missing" for name in sorted(set(listed) - set(present))]
    return findings


def _plain(name: str, depth: int) -> bool:
    parts = name.split("/")
    return len(parts) <= depth and all(_PLAIN_NAME.fullmatch(part) for part in parts)


def _read(path: Path, depth: int) -> tuple[dict[str, str], list[str]]:
    """Return the listed digests by name, and what is wrong with the list itself."""
    try:
        *lines, rest = read_regular(path).decode("utf-8", errors="replace").split("\n")
    except EvidenceError as error:
        return {}, [str(error).replace(f"{path}", NAME)]
    listed: dict[str, str] = {}
    findings = [f"{NAME}: does not end with a line break; it was cut short"] if rest else []
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        if not match:
            findings.append(f"{NAME}: line {number} is not 'sha256, two spaces, name'")
        elif not _plain(match[2], depth):
            findings.append(f"{NAME}: line {number} names {match[2]!r}, which is not a plain file name; not opened")
        elif match[2] in listed:
            findings.append(f"{NAME}: line {number} lists {match[2]} twice")
        else:
            listed[match[2]] = match[1]
    return listed, findings
