"""A model small enough to enumerate, of the family that a run trains, and the run's recipe cut down to its size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from assay.audit.check import foreign
from assay.audit.precision import COARSE, Precisions
from assay.policies.causal.loading import load
from assay.policies.causal.tokens import Codec
from assay.runs.language.audit.plain import Plain
from assay.runs.language.audit.small import TOKENS, small_config, spread_model, write_tokenizer
from assay.training.language.recipe import LanguageRecipe, estimator_of, sampler_gap
from assay.training.language.state import LanguageState, begin, begin_rl
from assay.training.language.update import Drawing

LENGTH = 2
"""Longest response."""
RANK, STEPS = 2, 64
TOLERANCE = 1e-10
"""Relative, where all is float64."""


@dataclass(frozen=True)
class Miniature:
    """A small model on disk, and the recipe that it is trained with.

    Attributes:
        recipe: cut down to it.
        original: the run's own.
        directory: where the model is, in Transformers' layout.
        family: the model's class.
        tolerance: relative, of everything that is compared.
        why: why it is that.
    """

    recipe: LanguageRecipe
    original: LanguageRecipe
    directory: Path
    family: str
    tolerance: float = TOLERANCE
    why: str = "everything is float64"

    def state(self, recipe: LanguageRecipe | None = None, *, reference: bool = True) -> tuple[LanguageState, Codec]:
        """Load the model as a run does, and return the state in which RL begins."""
        chosen = recipe or self.recipe
        loaded = load(
            str(self.directory),
            dtype="float64",
            lora=chosen.lora,
            lora_alpha=chosen.policy.lora_alpha,
            checkpointing=chosen.policy.gradient_checkpointing,
            seed=chosen.seed,
        )
        state = begin(loaded.policy, chosen.warmup, base=loaded.digest)
        begin_rl(state, chosen.rl, with_reference=reference)
        return state, Codec(loaded.tokenizer, stop_tokens=loaded.stop_tokens, stop=chosen.task.stop)


def with_rl(recipe: LanguageRecipe, **settings: object) -> LanguageRecipe:
    """Return a recipe with other settings of RL; they are checked when its estimator is made."""
    return recipe.model_copy(update={"rl": recipe.rl.model_copy(update=settings)})


def with_policy(recipe: LanguageRecipe, **settings: object) -> LanguageRecipe:
    """Return a recipe with other settings of the policy."""
    return recipe.model_copy(update={"policy": recipe.policy.model_copy(update=settings)})


def build(recipe: LanguageRecipe, family: Mapping[str, Any], directory: Path, *, seed: int = 0) -> Miniature:
    """Write a small model of a family to a directory, and cut a recipe down to it.

    Args:
        recipe: the run's own.
        family: config of a model of the family.
        directory: is filled.
        seed: of the random weights.

    Raises:
        SubjectError: there can be no such model that small.
    """
    stop = recipe.task.stop[:1]
    config = foreign(f"a small {family.get('model_type')}", small_config, family, end=None if stop else 0)
    model = foreign(f"a small {family.get('model_type')}", spread_model, config, seed)
    model.save_pretrained(directory)
    write_tokenizer(stop[0] if stop else "<end>", not stop, directory)
    miniature = Miniature(scaled(recipe, directory), recipe, directory, type(model).__name__)
    coarsest = _coarsest(miniature)
    if coarsest is torch.float64:
        return miniature
    name = str(coarsest).removeprefix("torch.")
    why = (
        f"Transformers computes a part of {miniature.family} in {name}, seen in its plain forward over float64 weights"
    )
    return Miniature(miniature.recipe, recipe, directory, miniature.family, COARSE, why)


def scaled(recipe: LanguageRecipe, directory: Path) -> LanguageRecipe:
    """Return a recipe for a small model: lengths, ranks and counts cut, everything else as it is."""
    rl, limit = recipe.rl, sampler_gap(recipe)
    overlong = {"overlong_length": LENGTH, "overlong_cache": 1} if estimator_of(recipe)[1].overlong_length else {}
    rank = min(recipe.lora, RANK)
    policy = {
        "dtype": "float64",
        "chat_template": False,
        "system_prompt": "",
        "max_prompt_length": 0,
        "lora_alpha": recipe.policy.lora_alpha * rank / max(recipe.lora, 1),
    }
    cut = {
        "steps": max(rl.steps, STEPS),
        "problems_per_step": 2,
        "max_completion_length": LENGTH,
        "top_k": min(rl.top_k, TOKENS - 1),
        "max_sampler_gap": limit,
    }
    made = with_policy(with_rl(recipe, **cut, **overlong), **policy)
    task = recipe.task.model_copy(update={"stop": recipe.task.stop[:1]})
    return made.model_copy(update={"model": str(directory), "lora": rank, "task": task})


def _coarsest(miniature: Miniature) -> torch.dtype:
    """Return the least precise type that the family computes in when its weights are float64."""
    state, _ = miniature.state(reference=False)
    plain = Plain(state.policy, Drawing())
    with Precisions() as seen, torch.no_grad():
        plain(torch.tensor([[1, 2, 1, 1]]))
    coarsest: torch.dtype = seen.coarsest
    return coarsest
