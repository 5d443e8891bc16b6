"""A small model and tokenizer of the family that a config is of."""

from __future__ import annotations

import importlib.util
import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from assay.audit.check import SubjectError
from assay.errors import ConfigError
from assay.training.language.recipe import LanguageRecipe

TOKENS = 3
"""Size of the vocabulary: what ends a response, and two letters."""
INNER = 24
"""Width of the layers between."""
_SIZES = {
    "num_hidden_layers": 2,
    "intermediate_size": INNER,
    "moe_intermediate_size": INNER,
    "n_inner": INNER,
    "max_position_embeddings": 64,
    "vocab_size": TOKENS,
    "bos_token_id": None,
}


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


def small_config(family: Mapping[str, Any], *, end: int | None) -> Any:
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


def spread_model(config: Any, seed: int) -> nn.Module:
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


def write_tokenizer(end: str, special: bool, directory: Path) -> None:
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
