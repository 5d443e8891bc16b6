"""A run's weights on the disk: the checkpoint that it is resumed from, and adapters that are put back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from assay.errors import CheckpointError
from assay.evidence.files import read_json
from assay.policies.causal.model import CausalPolicy
from assay.runs.directory import to_json
from assay.runs.language.layout import Layout, replacing, settle
from assay.training.language.recipe import LanguageRecipe
from assay.training.language.state import LanguageState, from_tensors, to_tensors

WEIGHTS, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"


def save_checkpoint(layout: Layout, state: LanguageState) -> None:
    """Replace a run's checkpoint, whole or not at all.

    Raises:
        RunError: it cannot be written; the old one is still there.
    """
    from safetensors.torch import save_file

    weights, moments, record = to_tensors(state)
    with replacing(layout.checkpoint) as partial:
        for name, tensors in ((WEIGHTS, weights), (OPTIMIZER, moments)):
            save_file({key: value.contiguous() for key, value in tensors.items()}, partial / name)
        (partial / STATE).write_bytes(to_json(record))


def load_checkpoint(layout: Layout, policy: CausalPolicy, recipe: LanguageRecipe, *, base: str) -> LanguageState | None:
    """Put a run's last saved state onto the model it began with; None where none was saved yet.

    Nothing in the files is executed: they are tensors and JSON.

    Raises:
        CheckpointError: the files are damaged, or do not fit the model.
        EvidenceError, RunError: ``state.json`` cannot be read.
    """
    if not settle(layout.checkpoint):
        return None
    record = read_json(layout.checkpoint / STATE)
    tensors = [_tensors(layout.checkpoint / name) for name in (WEIGHTS, OPTIMIZER)]
    try:
        weights, moments = tensors
        return from_tensors(
            policy,
            weights,
            moments,
            record,
            base=base,
            warmup=recipe.warmup,
            rl=recipe.rl,
            place=str(layout.checkpoint),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{layout.checkpoint / STATE}: an entry is missing or of the wrong kind ({error})"
        ) from error


def load_adapter(model: nn.Module, directory: Path) -> None:
    """Put a saved adapter's weights onto a ``peft`` model of the same shape.

    Raises:
        CheckpointError: the file is damaged or of another shape.
    """
    from peft import set_peft_model_state_dict

    found: Any = set_peft_model_state_dict(model, _tensors(directory / "adapter_model.safetensors"))
    if found.unexpected_keys:
        raise CheckpointError(f"{directory}: {found.unexpected_keys[0]} is no weight of this model's adapter")


def _tensors(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); the run cannot go on from it") from error
