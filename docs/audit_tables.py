"""The tables of the audit's pages, as lines of Markdown: computed from the code, or read from a file that a command
wrote. A table that could not be what its page says stops the build."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

from assay.audit.check import INVARIANTS, MEANINGS
from assay.audit.invariants import CHECKS

HERE = Path(__file__).parent
GAP = 1e-6
"""Largest distance of an identity from its formula; curl, by differences, comes within about 1e-8, the rest 1e-15."""


def invariants_table() -> list[str]:
    """Return the invariants, what each says, and its checks."""
    rows = ["| | invariant | says | checks |", "|---|---|---|---|"]
    for number, words in INVARIANTS.items():
        checks = ", ".join(f"`{check.__name__}`" for check in CHECKS[number])
        rows.append(f"| {number} | {words} | {MEANINGS[number]} | {checks} |")
    return rows


def checks_table() -> list[str]:
    """Return each check with its first sentence."""
    rows = ["| check | of | |", "|---|---|---|"]
    for number, checks in CHECKS.items():
        for check in checks:
            sentence = (inspect.getdoc(check) or "").split("\n\n")[0].replace("\n", " ")
            rows.append(f"| `{check.__name__}` | {number} | {sentence} |")
    return rows


def identities_table(atlas: dict[str, Any]) -> list[str]:
    """Return the identities, formula beside enumeration.

    Raises:
        ValueError: one of them does not hold.
    """
    rows = ["| identity | case | formula | enumerated | difference |", "|---|---|---|---|---|"]
    statements = list(dict.fromkeys(entry["statement"] for entry in atlas["identities"]))
    for entry in sorted(atlas["identities"], key=lambda entry: statements.index(entry["statement"])):
        if not entry["gap"] <= GAP:
            raise ValueError(f"the atlas's identity {entry['statement']!r} ({entry['case']}) is off by {entry['gap']}")
        rows.append(
            f"| {entry['statement']} | {entry['case']} | {entry['expected']:.6f} | {entry['found']:.6f} "
            f"| {entry['gap']:.0e} |"
        )
    return rows


def entries_table(atlas: dict[str, Any], policy: str) -> list[str]:
    """Return what each loss ascends under one policy, a row for each loss and group size."""
    rows = [
        "| loss | G | ascends | bias | variance | curl | I2 | I3 | I4 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for entry in atlas["entries"]:
        if entry["policy"] != policy:
            continue
        name = f"`{entry['loss']}`" + (f" {entry['settings']}" if entry["settings"] else "")
        marks = " | ".join("✓" if entry["invariants"][number] == "holds" else "✗" for number in ("I2", "I3", "I4"))
        figures = f"{entry['bias']:.2g} | {entry['variance_ratio']:.3g} | {entry['curl']:.0e}"
        rows.append(f"| {name} | {entry['group_size']} | {_ascended(entry)} | {figures} | {marks} |")
    return rows


def _ascended(entry: dict[str, Any]) -> str:
    if entry["ascends"] is not None:
        terms = " + ".join(f"{value:.5g} {name}" for name, value in entry["ascends"].items()) or "nothing"
        return terms.replace("+ -", "- ")
    best = min(entry["fits"], key=lambda name: entry["fits"][name][1])
    coefficient, residual = entry["fits"][best]
    return f"nearest {coefficient:.3g} {best}, leaves {residual:.0%}"


def versions_table() -> list[str]:
    """Return the versions that the recorded verdicts rest on."""
    versions = json.loads((HERE / "peers.json").read_text())["versions"]
    return ["| package | version |", "|---|---|", *(f"| {name} | {version} |" for name, version in versions.items())]


def peers_table(library: str) -> list[str]:
    """Return the recorded verdicts about one library: settings, world, what is ascended and what disagrees."""
    record = json.loads((HERE / "peers.json").read_text())
    rows = ["| subject, settings, world | against | verdict | ascends | variance |", "|---|---|---|---|---|"]
    for row in record["rows"]:
        if row["library"] != library:
            continue
        world = row["world"] + (f", {row['prompts']} prompts a batch" if row["prompts"] > 1 else "")
        settings = [f"{key}={value}" for key, value in row["settings"].items()]
        what = " ".join([f"`{row['subject']}`", *settings, f"· {world}"])
        others = [name.split()[0] for name, made in row["invariants"].items() if made == "disagrees"]
        verdict = row["verdict"] + (f" ({', '.join(others)})" if others else "")
        ratio = "" if row["variance_ratio"] is None else f"{row['variance_ratio']:.3g}"
        rows.append(f"| {what} | {row['objective']} | {verdict} | {row['ascends']} | {ratio} |")
    return rows
