"""A model small enough to enumerate, of the family that a run trains, and the run's recipe cut down to its size."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from assay.audit.check import SubjectError, foreign
from assay.audit.precision import COARSE, Precisions
from assay.errors import ConfigError
from assay.policies.causal.loading import load
from assay.policies.causal.tokens import Codec
from assay.runs.language.audit.plain import Plain
from assay.training.language.recipe import LanguageRecipe, estimator_of, sampler_gap
from assay.training.language.state import LanguageState, begin, begin_rl
from assay.training.language.update import Drawing

LENGTH = 2
"""Longest response."""
TOKENS = 3
"""Size of the vocabulary: what ends a response, and two letters."""
INNER, RANK, STEPS = 24, 2, 64
TOLERANCE = 1e-10
"""Relative, where all is float64."""
_SIZES = {
    "num_hidden_layers": 2,
    "intermediate_size": INNER,
    "moe_intermediate_size": INNER,
    "n_inner": INNER,
    "max_position_embeddings": 64,
    "vocab_size": TOKENS,
    "bos_token_id": None,
}


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
    config = foreign(f"a small {family.get('model_type')}", _small, family, end=None if stop else 0)
    model = foreign(f"a small {family.get('model_type')}", _spread, config, seed)
    model.save_pretrained(directory)
    _write_tokenizer(stop[0] if stop else "<end>", not stop, directory)
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


def family_of(recipe: LanguageRecipe, model: Path) -> dict[str, Any]:
    """Return the config of what a run trains: of its exported model, or of the base where that is an adapter.

    Raises:
        ConfigError: there is none to be read.
    """
    place = model if (model / "config.json").is_file() else Path(recipe.model).expanduser()
    try:
        if (place / "config.json").is_file():
            made: dict[str, Any] = json.loads((place / "config.json").read_text(encoding="utf-8"))
            return made
        return _elsewhere(recipe.model)
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(f"model = {recipe.model}: its config cannot be read ({error}); check the name") from error


def _elsewhere(name: str) -> dict[str, Any]:
    import importlib.util

    from transformers import AutoConfig

    if not name.startswith("package:"):
        return dict(AutoConfig.from_pretrained(name).to_dict())
    found = importlib.util.find_spec(name.removeprefix("package:"))
    if found is None or not found.submodule_search_locations:
        raise ConfigError(f"model = {name}: no such package is installed; pip install it")
    place = Path(next(iter(found.submodule_search_locations)))
    files = sorted(place.glob("*.gguf"))
    given = {"gguf_file": files[0].name} if files else {}
    return dict(AutoConfig.from_pretrained(str(place), **given).to_dict())


def _small(family: Mapping[str, Any], *, end: int | None) -> Any:
    """Return a config of the same class: two layers, a few narrow heads, queries and keys in the same proportion."""
    from transformers import AutoConfig

    kind = family.get("model_type")
    if not isinstance(kind, str):
        raise SubjectError("the model's config names no model_type")
    original = AutoConfig.for_model(kind, **{key: value for key, value in family.items() if key != "model_type"})
    given = original.to_dict()
    heads = original.num_attention_heads
    shared = given.get("num_key_value_heads") or heads
    keys = 1 if shared == 1 or heads // shared > 3 else 2
    queries = keys * min(heads // shared, 6)
    width = 8 if queries <= 2 else 4
    sizes = {
        **_SIZES,
        "head_dim": width,
        "num_attention_heads": queries,
        "num_key_value_heads": keys,
        "hidden_size": queries * width,
        "eos_token_id": end,
        "pad_token_id": 0,
        "layer_types": (given.get("layer_types") or [])[:2] or None,
    }
    named = {original.attribute_map.get(name, name): value for name, value in sizes.items()}
    return type(original)(**{**given, **{name: value for name, value in named.items() if name in given}})


def _spread(config: Any, seed: int) -> nn.Module:
    """Return a model of a config with random weights, large enough that no two tokens are nearly alike."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
        with torch.no_grad():
            for value in model.parameters():
                noise = torch.randn(value.shape, dtype=value.dtype)
                if value.ndim < 2:
                    value += 0.2 * noise
                else:
                    value.copy_(1.2 * noise * max(value.shape) ** -0.5)
    made: nn.Module = model.eval()
    return made


def _write_tokenizer(end: str, special: bool, directory: Path) -> None:
    """Write a tokenizer of what ends a response and two letters, a token each. Padding is the end, as a trap.

    Args:
        end: the token's text.
        special: whether it is the end of sequence; otherwise it is a stop string, and there is none.
        directory: beside the model.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = [letter for letter in string.ascii_lowercase if letter not in end][: TOKENS - 1]
    vocabulary = {end: 0, **{letter: number + 1 for number, letter in enumerate(letters)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=letters[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(directory)
    path = directory / "tokenizer_config.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    mine = dict.fromkeys(("eos_token", "pad_token"), end if special else None)  # else a family's own would be added
    path.write_text(json.dumps({**written, **mine, "bos_token": None, "unk_token": None}), encoding="utf-8")


def _coarsest(miniature: Miniature) -> torch.dtype:
    """Return the least precise type that the family computes in when its weights are float64."""
    state, _ = miniature.state(reference=False)
    plain = Plain(state.policy, Drawing())
    with Precisions() as seen, torch.no_grad():
        plain(torch.tensor([[1, 2, 1, 1]]))
    return seen.coarsest
