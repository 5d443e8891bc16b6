"""A policy's weights in Transformers' layout: what ``from_pretrained`` opens, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from assay.core.digest import distinct, model_digest
from assay.errors import ConfigError, RunError
from assay.evidence.language.weights import BASE, weight_files
from assay.evidence.tensors import read_header, tensors_digest
from assay.runs.directory import to_json
from assay.runs.language.layout import replacing

SHARD = "2GB"
_QUANTIZED = ("hf_quantizer", "is_quantized", "quantization_method")


@dataclass(frozen=True)
class Base:
    """The model that training began with.

    Attributes:
        name: as the recipe names it.
        digest: of its weights, :func:`assay.core.digest.model_digest`.
    """

    name: str
    digest: str


def export(
    model: nn.Module,
    tokenizer: Any,
    directory: Path,
    *,
    base: Base,
    card: str | None = None,
    max_shard_size: str = SHARD,
) -> str:
    """Write a policy to a directory that ``from_pretrained`` opens, in place of what was there.

    A whole model is written as safetensors with its config, generation config and tokenizer; tied weights once, types
    as trained. A ``peft`` model is written as its adapter, with the name and the digest of its base in
    ``base_model.json``. The old directory is there until the new one is on the disk.

    Args:
        model: a ``PreTrainedModel`` or a ``PeftModel``. It is left as it was.
        tokenizer: saved beside it, chat template included.
        directory: is made, or replaced.
        base: what training began with.
        card: text of ``README.md``.
        max_shard_size: of one file, such as ``"2GB"``.

    Returns:
        The digest of the tensors in the files, :func:`assay.evidence.tensors.tensors_digest`.

    Raises:
        ConfigError: the model is quantized, or its generation config is one that Transformers does not save.
        RunError: it cannot be written, or what was written is not what is in memory.
    """
    adapted = hasattr(model, "peft_config")
    check_plain(model)
    with replacing(directory) as partial, _without_bars():
        if adapted:
            _save_adapter(model, partial, base)
        else:
            _save_model(model, partial, max_shard_size)
        tokenizer.save_pretrained(partial)
        if card is not None:
            (partial / "README.md").write_text(card, encoding="utf-8")
        digest = tensors_digest(weight_files(partial))
        if not adapted and _names(partial) == _names_of(model) and digest != model_digest(model):
            raise RunError(f"{directory}: what was written is not what is in memory; check the disk and the memory")
    return digest


def _save_model(model: Any, partial: Path, max_shard_size: str) -> None:
    with hiding_quantization(model):
        try:
            model.save_pretrained(partial, max_shard_size=max_shard_size)
        except ValueError as error:
            raise ConfigError(f"the model cannot be saved ({one_line(error)}); repair it and start again") from error


def _save_adapter(model: Any, partial: Path, base: Base) -> None:
    """Write an adapter; its config is made the same in every process, and names the base as the recipe does."""
    model.save_pretrained(partial, save_embedding_layers=False)  # asked to decide itself, peft looks on the hub
    (partial / "README.md").unlink(missing_ok=True)  # a template without content
    path = partial / "adapter_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["base_model_name_or_path"] = base.name
    for name, value in settings.items():
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            settings[name] = sorted(value)  # peft writes a set in an order that changes with each process
    path.write_bytes(to_json(settings))
    (partial / BASE).write_bytes(to_json(asdict(base)))


def check_plain(model: nn.Module) -> None:
    """Refuse a model with weights that are no floats.

    Raises:
        ConfigError: it names the first.
    """
    for name, value in model.named_parameters():
        if not value.is_floating_point():
            raise ConfigError(f"{name} is {value.dtype}: a quantized model is not exported; load it with plain weights")


@contextmanager
def hiding_quantization(model: Any) -> Iterator[None]:
    """Hide that plain weights were once read from a quantized file, which Transformers would refuse to save."""
    hidden = {name: vars(model).pop(name) for name in _QUANTIZED if name in vars(model)}
    recorded = vars(model.config).pop("quantization_config", None)
    try:
        yield
    finally:
        vars(model).update(hidden)
        if recorded is not None:
            model.config.quantization_config = recorded


@contextmanager
def _without_bars() -> Iterator[None]:
    from transformers.utils import logging as module

    logging: Any = module
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _names(folder: Path) -> set[str]:
    return {name for path in weight_files(folder) for name in read_header(path)}


def _names_of(model: nn.Module) -> set[str]:
    return {name for name, _ in distinct(model)}


def one_line(error: Exception) -> str:
    """Return an error's message as one line."""
    return " ".join(str(error).split())
