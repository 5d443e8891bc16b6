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
    from assay.runs.language.evaluate import evaluate_language as evaluate_language
    from assay.runs.language.train import resume_language as resume_language
    from assay.runs.language.train import train_language as train_language
    from assay.runs.train import resume as resume
    from assay.runs.train import train as train
    from assay.runs.verify import verify as verify
    from assay.training.config import Recipe as Recipe
    from assay.training.language.recipe import LanguageRecipe as LanguageRecipe

_HOMES = {
    "Recipe": "assay.training.config",
    "LanguageRecipe": "assay.training.language.recipe",
    "train_language": "assay.runs.language.train",
    "resume_language": "assay.runs.language.train",
    "evaluate_language": "assay.runs.language.evaluate",
    "train": "assay.runs.train",
    "resume": "assay.runs.train",
    "evaluate": "assay.runs.evaluate",
    "verify": "assay.runs.verify",
    "compare": "assay.runs.compare",
}
__all__ = [  # noqa: F822 (resolved on first use, below)
    "LanguageRecipe",
    "Recipe",
    "compare",
    "evaluate",
    "evaluate_language",
    "resume",
    "resume_language",
    "train",
    "train_language",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'assay' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
