"""A run of a tiny language model, small enough to be trained in a test."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from runs.tiny_language_models import tiny_model, tiny_tokenizer

from assay.training.language.recipe import LanguageRecipe, build_language_recipe


def furnish(place: Path) -> Path:
    """Put a tiny GPT-2, a tiny Llama and some sums into a directory."""
    for family in ("gpt2", "llama"):
        tiny_model(family).save_pretrained(place / family)
        tiny_tokenizer().save_pretrained(place / family)
    rows = [
        {"prompt": f"{a}+{b}=", "answer": str(a + b), "pair": f"{min(a, b)}{max(a, b)}"}
        for a, b in itertools.product(range(5), repeat=2)
    ]
    (place / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


def settings(**sections: Any) -> dict[str, Any]:
    """Return the settings of a run, some of them given."""
    base: dict[str, Any] = {
        "model": "gpt2",
        "data": "sums.jsonl",
        "reward": "runs.tiny_rewards:even",
        "save_steps": 2,
        "task": {"split_by": "pair", "test_problems": 6},
        "grading": {"self_test": 0},
        "warmup": {"steps": 1, "problems_per_step": 4, "learning_rate": 1e-3},
        "rl": {
            "steps": 4,
            "problems_per_step": 3,
            "num_generations": 4,
            "learning_rate": 1e-3,
            "max_completion_length": 5,
        },
        "evaluation": {"samples": 2, "pass_k": [1, 2], "every": 2},
    }
    for name, given in sections.items():
        base[name] = {**base[name], **given} if isinstance(given, dict) and name in base else given
    return base


def recipe(place: Path, **sections: Any) -> LanguageRecipe:
    """Return the recipe of a run in a furnished directory."""
    return build_language_recipe(settings(**sections), place="test", base=place)
