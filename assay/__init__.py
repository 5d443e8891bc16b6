"""Assay trains language models by reinforcement learning from verifiable rewards, and proves what each update does.

The names below are the whole public surface for running experiments; importing this package loads nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from assay.version import __version__ as __version__

if TYPE_CHECKING:
    from assay.runs.compare import compare as compare
    from assay.runs.evaluate import evaluate as evaluate
    from assay.runs.train import resume as resume
    from assay.runs.train import train as train
    from assay.runs.verify import verify as verify
    from assay.training.config import Recipe as Recipe

_HOMES = {
    "Recipe": "assay.training.config",
    "train": "assay.runs.train",
    "resume": "assay.runs.train",
    "evaluate": "assay.runs.evaluate",
    "verify": "assay.runs.verify",
    "compare": "assay.runs.compare",
}
__all__ = ["Recipe", "compare", "evaluate", "resume", "train", "verify"]  # noqa: F822 (resolved on first use, below)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'assay' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
