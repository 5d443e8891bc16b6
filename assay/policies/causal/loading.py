"""Loading a language model: from a directory, a package that ships one, or a hub; full or with adapters."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from assay.core.digest import model_digest
from assay.errors import ConfigError
from assay.policies.causal.attention import recomputed, register
from assay.policies.causal.model import CausalPolicy
from assay.policies.causal.probe import check_packing

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.float32}
"""Type of the weights for each setting; under bfloat16 the body's matrix products alone are in it."""


@dataclass(frozen=True)
class Loaded:
    """A model as loaded, with what belongs to it.

    Attributes:
        policy: the model.
        tokenizer: its tokenizer.
        context: most tokens that it reads; a sliding window counts.
        stop_tokens: the tokens that its own settings end a response with.
        digest: of the model's weights as they came, before any adapter.
    """

    policy: CausalPolicy
    tokenizer: Any
    context: int
    stop_tokens: tuple[int, ...]
    digest: str


def load(
    name: str,
    *,
    dtype: str = "float32",
    lora: int = 0,
    lora_alpha: float = 0.0,
    checkpointing: bool = False,
    seed: int = 0,
    device: str = "cpu",
) -> Loaded:
    """Load a model and its tokenizer, ready to be trained.

    Dropout is off everywhere: with it, the policy that is scored would not be the one that was sampled from.

    Args:
        name: a directory in Transformers' layout, ``package:NAME`` for a model that an installed package ships, or a
            name on a hub.
        dtype: of :data:`DTYPES`.
        lora: rank of the adapters that are trained in place of the weights; 0 for none.
        lora_alpha: their scale times the rank; 0 for twice the rank.
        checkpointing: whether activations are made again in the backward.
        seed: of the adapters' first values.
        device: where the weights go, ``"cpu"`` or ``"cuda"``.

    Raises:
        ConfigError: there is no such device, nothing of that name, a file is missing or damaged, tokenizer and model do
            not fit together, or the architecture cannot read packed rows.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("policy.device = 'cuda': torch sees no such device here; use 'cpu'")
    place, file = _find(name)
    given = {"gguf_file": file} if file else {}
    model, tokenizer = _opened(name, place, given, dtype)
    _check_tokenizer(name, model, tokenizer)
    context = _context(model.config)
    if hasattr(model.config, "quantization_config"):  # the weights were unpacked when they were loaded
        del model.config.quantization_config
    _without_dropout(model)
    stop, digest = _stop_tokens(model), model_digest(model)
    if checkpointing:
        recompute_activations(model)
    if lora:
        model = _with_adapters(model, lora, lora_alpha or 2.0 * lora, seed)
    model.to(device)
    policy = CausalPolicy(model, autocast=torch.bfloat16 if dtype == "bfloat16" else None)
    check_packing(policy, name=name)
    return Loaded(policy, tokenizer, context, stop, digest)


def recompute_activations(model: Any) -> None:
    """Make a model without dropout compute its layers again in the backward, each in the layout that it had."""
    again = {"use_reentrant": False, "context_fn": recomputed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # later versions have another name for it too
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=again)
    model.train()  # which Transformers asks for; without dropout it changes nothing else


def _find(name: str) -> tuple[str, str | None]:
    """Return what Transformers is to open: a directory or a name, and a file in it where that is the model."""
    if name.startswith("package:"):
        return _shipped(name.removeprefix("package:"))
    path = Path(name)
    if path.exists() or name.startswith((".", "/", "~")):
        _check_directory(path.expanduser())
        return str(path.expanduser()), None
    return name, None


def _shipped(package: str) -> tuple[str, str | None]:
    found = importlib.util.find_spec(package) if package.isidentifier() else None
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            f"model = package:{package}: no such package is installed; pip install it, or give a directory"
        )
    place = Path(next(iter(found.submodule_search_locations)))
    if (place / "config.json").exists():
        _check_directory(place)
        return str(place), None
    files = sorted(place.glob("*.gguf"))
    if len(files) != 1:
        raise ConfigError(
            f"model = package:{package}: it ships {len(files)} .gguf files and no config.json; expected one model"
        )
    return str(place), files[0].name


def _check_directory(path: Path) -> None:
    """Refuse a directory that holds no model, or half of one."""
    if not path.is_dir():
        raise ConfigError(f"model = {path}: no such directory; check the path")
    if not (path / "config.json").is_file():
        raise ConfigError(f"model = {path}: no config.json in it, so it is no model in Transformers' layout")
    index = path / "model.safetensors.index.json"
    try:
        wanted = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else set()
    except (ValueError, KeyError, AttributeError) as error:
        raise ConfigError(f"model = {path}: {index.name} cannot be read ({error}); download the model again") from error
    missing = sorted(name for name in wanted if not (path / name).is_file())
    if missing:
        raise ConfigError(f"model = {path}: {', '.join(missing)} missing; half-downloaded, download the model again")
    if not wanted and not [*path.glob("*.safetensors"), *path.glob("pytorch_model*.bin")]:
        raise ConfigError(f"model = {path}: no weights in it (*.safetensors); download the model again")


def _opened(name: str, place: str, given: dict[str, str], dtype: str) -> tuple[nn.Module, Any]:
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging
    except ImportError as error:
        raise ConfigError(f"model = {name}: needs Transformers: pip install 'assay[lm]' ({error})") from error
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    made: Any
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):  # some draw bars whatever is asked
            warnings.simplefilter("ignore")
            tokenizer = AutoTokenizer.from_pretrained(place, **given)
            made = AutoModelForCausalLM.from_pretrained(
                place,
                dtype=DTYPES[dtype],
                attn_implementation=register(),
                output_loading_info=True,
                use_safetensors=None if given else True,
                **given,
            )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, AttributeError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"model = {name}: cannot be loaded ({first}); check the name and the files") from error
    except Exception as error:  # safetensors and tokenizers raise types of their own for damaged files
        raise ConfigError(
            f"model = {name}: damaged ({type(error).__name__}: {error}); download the model again"
        ) from error
    model, found = made
    odd = sorted(found["missing_keys"]) or sorted(str(key) for key in found["mismatched_keys"])
    if odd:
        raise ConfigError(
            f"model = {name}: weights of {odd[0]} and {len(odd) - 1} more are missing; they would be random"
        )
    return model.eval(), tokenizer


def _check_tokenizer(name: str, model: Any, tokenizer: Any) -> None:
    size = model.get_output_embeddings().weight.shape[0]
    largest = max(tokenizer.get_vocab().values())
    if largest >= size:
        raise ConfigError(
            f"model = {name}: the tokenizer has token {largest} and the model {size} of them; they do not fit together"
        )


def _context(config: Any) -> int:
    longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 2**31
    layers = getattr(config, "layer_types", None) or ["sliding_attention"]  # without a list, every layer has the window
    for kind, name in (("sliding_attention", "sliding_window"), ("chunked_attention", "attention_chunk_size")):
        if kind in layers:
            longest = min(longest, getattr(config, name, None) or longest)
    return int(longest)


def _stop_tokens(model: Any) -> tuple[int, ...]:
    """Return the end-of-sequence tokens of the model's own settings, of which there may be several."""
    ids: set[Any] = set()
    for settings in (model.generation_config, model.config):
        value = getattr(settings, "eos_token_id", None)
        ids |= set(value if isinstance(value, list) else [value])
    return tuple(sorted(i for i in ids - {None} if i < model.get_output_embeddings().weight.shape[0]))


def _without_dropout(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "attn_dropout", "dropout", "hidden_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def _with_adapters(model: nn.Module, rank: int, alpha: float, seed: int) -> nn.Module:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ConfigError(f"lora = {rank}: needs peft: pip install 'assay[lm]' ({error})") from error
    scale: Any = alpha  # which need not be whole
    settings = LoraConfig(
        r=rank, lora_alpha=scale, target_modules="all-linear", lora_dropout=0.0, bias="none", task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        made: nn.Module = get_peft_model(model, settings)
    return made
