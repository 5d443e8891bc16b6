"""The checkpoint: a run's whole state in one tensor file, read back without executing anything.

``checkpoint.pt`` is what ``torch.save`` writes of one dictionary; it opens with ``torch.load(...,
weights_only=True)``:

    format              "assay-checkpoint/1"
    phase, step         where the run stands; "done" when it has finished
    policy, reference   parameter name -> tensor (the reference is empty during warm-up)
    optimizer           AdamW's state dictionary
    reference_digests, last_gradient    as in :class:`assay.training.state.State`
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
import warnings
import zipfile
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from assay.core.digest import weights_digest
from assay.errors import CheckpointError
from assay.policies.transformer import TinyTransformer
from assay.training.config import Recipe
from assay.training.state import State, adamw, initial_policy

FORMAT = "assay-checkpoint/1"
_UNREADABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
)
"""What reading damaged bytes ends in: torch checks few of the values that it unpickles."""
KEYS = {
    "format": str,
    "phase": str,
    "step": int,
    "policy": dict,
    "reference": dict,
    "optimizer": dict,
    "reference_digests": dict,
    "last_gradient": dict,
}


def to_bytes(state: State) -> bytes:
    """Return the checkpoint file of a state. The same state gives the same bytes."""
    reference = state.reference.named_parameters() if state.reference else ()
    buffer = io.BytesIO()
    content = {
        "format": FORMAT,
        "phase": state.phase,
        "step": state.step,
        "policy": _weights(state.policy.named_parameters()),
        "reference": _weights(reference),
        "optimizer": state.optimizer.state_dict(),
        "reference_digests": dict(state.reference_digests),
        "last_gradient": dict(state.last_gradient),
    }
    torch.save(_canonical(content), buffer)
    return buffer.getvalue()


def from_bytes(data: bytes, recipe: Recipe, *, place: str) -> State:
    """Rebuild the state that a checkpoint file holds.

    Args:
        data: the file.
        recipe: of the run; it fixes names and shapes.
        place: the file's name, for messages.

    Raises:
        CheckpointError: not a tensor file, code instead of tensors, keys or shapes that do not fit the recipe, or a
            reference that is not the one RL started from.
    """
    content = _load(data, place)
    phase, step = content["phase"], content["step"]
    limit = {"warmup": recipe.warmup.steps, "rl": recipe.rl.steps, "done": recipe.rl.steps}
    if phase not in limit or not 0 <= step <= limit[phase]:
        raise CheckpointError(f"{place}: stands at {phase} step {step}, which the plan does not contain")
    policy = initial_policy(recipe)
    _fill(policy, content["policy"], f"{place}: policy")
    state = State(phase, step, policy, adamw(policy, recipe.warmup if phase == "warmup" else recipe.rl))
    state.reference_digests = content["reference_digests"]
    state.last_gradient = content["last_gradient"]
    if phase != "warmup":
        state.reference = initial_policy(recipe).requires_grad_(False)
        _fill(state.reference, content["reference"], f"{place}: reference")
        digest, first = weights_digest(state.reference.named_parameters()), state.reference_digests.get("rl 0")
        if digest != first:
            raise CheckpointError(f"{place}: the reference has digest {digest[:12]}, RL began with {str(first)[:12]}")
    _check_names(content, place)
    _check_optimizer(content["optimizer"], state, place)
    state.optimizer.load_state_dict(content["optimizer"])
    return state


def _check_names(content: dict[str, Any], place: str) -> None:
    """Refuse recorded digests and norms that are no text and no numbers."""
    if not all(isinstance(part, str) for pair in content["reference_digests"].items() for part in pair):
        raise CheckpointError(f"{place}: reference_digests must map names to digests")
    norms = content["last_gradient"]
    plain = all(isinstance(norm, float) and 0 <= norm < float("inf") for norm in norms.values())
    if not plain or (norms and set(norms) != set(content["policy"])):
        raise CheckpointError(f"{place}: last_gradient must hold a finite norm for each parameter")


def _check_optimizer(saved: dict[str, Any], state: State, place: str) -> None:
    """Refuse an optimizer state that this recipe's own steps cannot have left.

    It steers every later update, and the fused kernel trusts its shapes.
    """
    parameters = list(state.policy.parameters())
    if set(saved) != {"state", "param_groups"} or saved["param_groups"] != state.optimizer.state_dict()["param_groups"]:
        raise CheckpointError(f"{place}: the optimizer's settings are not those of the recipe")
    moments = saved["state"]
    if not isinstance(moments, dict) or (moments and set(moments) != set(range(len(parameters)))):
        raise CheckpointError(f"{place}: the optimizer must have moments for every parameter or for none")
    taken = set()
    for index, entry in moments.items():
        if not isinstance(entry, dict) or set(entry) != {"step", "exp_avg", "exp_avg_sq"}:
            raise CheckpointError(f"{place}: the optimizer's entry {index} is not AdamW's")
        if not all(isinstance(value, Tensor) and bool(value.isfinite().all()) for value in entry.values()):
            raise CheckpointError(f"{place}: the optimizer's entry {index} holds a value that is not a finite tensor")
        forms = _form(entry["exp_avg"]), _form(entry["exp_avg_sq"])
        if (
            forms != (_form(parameters[index]),) * 2
            or entry["step"].numel() != 1
            or bool((entry["exp_avg_sq"] < 0).any())
        ):
            raise CheckpointError(f"{place}: the optimizer's entry {index} does not fit its parameter")
        taken.add(float(entry["step"]))
    steps = taken.pop() if taken else 0.0
    planned = (state.step,) if state.phase == "warmup" else range(state.step + 1)
    if taken or steps not in planned:
        raise CheckpointError(f"{place}: the optimizer has taken {steps:g} steps, the run stands at {state.step}")


def _canonical(value: Any) -> Any:
    """Return an equal value in which equal strings are one object.

    A pickle writes an object it has met before as a reference. Whether two equal strings are one object depends
    on whether they were just read from a file; the bytes must not.
    """
    if isinstance(value, dict):
        return {_canonical(key): _canonical(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_canonical(entry) for entry in value)
    return sys.intern(value) if isinstance(value, str) else value


def _load(data: bytes, place: str) -> dict[str, Any]:
    try:
        _check_archive(data, place)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch comments on odd files; the error below says all there is to say
            content = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{place}: refused, it holds something other than tensors and plain values; nothing in it was executed"
        ) from error
    except _UNREADABLE as error:
        raise CheckpointError(f"{place}: not a readable checkpoint; the file is damaged or not one of ours") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(f"{place}: not an {FORMAT} file")
    for key, kind in KEYS.items():
        if not isinstance(content.get(key), kind):
            raise CheckpointError(f"{place}: entry {key!r} is missing or not a {kind.__name__}")
    return content


def _check_archive(data: bytes, place: str) -> None:
    """Compare every entry of the archive with its own checksum, which torch does not do when it reads one."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > len(data):
            raise CheckpointError(f"{place}: holds compressed entries, which no checkpoint of ours does; not unpacked")
        if name := archive.testzip():
            raise CheckpointError(f"{place}: entry {name} does not match its checksum; the file is damaged")


def _weights(named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in named}


def _form(tensor: Tensor) -> tuple[torch.Size, torch.dtype, torch.layout]:
    return tensor.shape, tensor.dtype, tensor.layout


@torch.no_grad()
def _fill(policy: TinyTransformer, weights: dict[str, Tensor], place: str) -> None:
    parameters = dict(policy.named_parameters())
    if set(weights) != set(parameters):
        odd = sorted(set(weights) ^ set(parameters), key=str)[0]
        raise CheckpointError(f"{place}: parameter {odd} is missing or unexpected")
    for name, parameter in parameters.items():
        tensor = weights[name]
        if not isinstance(tensor, Tensor) or _form(tensor) != _form(parameter):
            form = f"a dense {parameter.dtype} tensor of shape {tuple(parameter.shape)}"
            raise CheckpointError(f"{place}: {name} should be {form}")
        if not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{place}: {name} holds a value that is not finite")
        parameter.copy_(tensor)
