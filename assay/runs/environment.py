"""The environment a run's numbers depend on, recorded without a clock and compared before a run is continued."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import assay
from assay.evidence.digest import source_digest
from assay.threads import THREADS

PACKAGES = ("torch", "numpy", "scipy", "pydantic", "matplotlib", "jinja2")


def describe_environment(packages: tuple[str, ...] = (), *, threads: int = THREADS) -> dict[str, Any]:
    """Return the package's own source digest and the build and machine that compute its numbers.

    Args:
        packages: that the numbers depend on besides :data:`PACKAGES`.
        threads: that torch computes on.
    """
    return {
        "assay": assay.__version__,
        "source": source_digest(Path(assay.__file__).parent),
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": threads,
        "packages": {name: version(name) for name in (*PACKAGES, *packages)},
    }


def differences(recorded: dict[str, Any], current: dict[str, Any]) -> list[str]:
    """Return which entries differ, as ``name was X, is Y``."""
    flat_recorded, flat_current = _flat(recorded), _flat(current)
    return [
        f"{name} was {_short(flat_recorded.get(name))}, is {_short(flat_current.get(name))}"
        for name in sorted(set(flat_recorded) | set(flat_current))
        if flat_recorded.get(name) != flat_current.get(name)
    ]


def _flat(record: dict[str, Any]) -> dict[str, str]:
    packages = record.get("packages", {})
    return {**{k: str(v) for k, v in record.items() if k != "packages"}, **{k: str(v) for k, v in packages.items()}}


def _short(value: str | None) -> str:
    return "absent" if value is None else value[:16] + "..." if len(value) > 40 else value
