"""``SHA256SUMS``: one line a file, in the format that ``sha256sum -c`` reads."""

from __future__ import annotations

import re
from pathlib import Path

from assay.errors import EvidenceError
from assay.evidence.digest import file_digest
from assay.evidence.files import oddity, read_regular

NAME = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def sums_text(directory: Path, names: list[str]) -> str:
    """Return the text of ``SHA256SUMS`` for some files of a directory, in sorted order."""
    return "".join(f"{file_digest(directory / name)}  {name}\n" for name in sorted(names))


def check_sums(directory: Path) -> list[str]:
    """Compare a directory with its ``SHA256SUMS`` and return what is wrong, one line a finding.

    The directory is flat: every entry must be a regular file that the sums list, and the other way round. A
    name with a path in it is a finding and is never opened; neither is a link, a directory or a device.

    Raises:
        OSError: the directory or a file in it cannot be read.
    """
    listed, findings = _read(directory / NAME)
    present = {entry.name: entry for entry in directory.iterdir() if entry.name != NAME}
    for name, entry in sorted(present.items()):
        if odd := oddity(entry):
            findings.append(f"{name}: {odd}")
        elif name not in listed:
            findings.append(f"{name}: is not listed in {NAME}; it was added after the run was sealed")
        elif (digest := file_digest(entry)) != listed[name]:
            findings.append(f"{name}: has sha256 {digest[:16]}..., {NAME} says {listed[name][:16]}...; it was changed")
    findings += [f"{name}: is listed in {NAME} and missing" for name in sorted(set(listed) - set(present))]
    return findings


def _read(path: Path) -> tuple[dict[str, str], list[str]]:
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
        elif not _PLAIN_NAME.fullmatch(match[2]):
            findings.append(f"{NAME}: line {number} names {match[2]!r}, which is not a plain file name; not opened")
        elif match[2] in listed:
            findings.append(f"{NAME}: line {number} lists {match[2]} twice")
        else:
            listed[match[2]] = match[1]
    return listed, findings
