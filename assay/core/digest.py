"""The digest of a set of weights: equal exactly when every name, shape, type and byte is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

_NUMPY = {
    torch.float64: "<f8",
    torch.float32: "<f4",
    torch.float16: "<f2",
    torch.int64: "<i8",
    torch.int32: "<i4",
    torch.int16: "<i2",
    torch.int8: "|i1",
    torch.uint8: "|u1",
    torch.bool: "|b1",
}


def weights_digest(named: Iterable[tuple[str, Tensor]]) -> str:
    """Return the sha256 of named tensors, in their given order, as hex.

    A type is written as numpy writes it, ``<f4`` for float32; one that numpy lacks by its name in torch, ``bfloat16``.

    Args:
        named: pairs of name and tensor, such as ``policy.named_parameters()`` yields. One tensor at a time is copied
            where it is not in the CPU's memory already.
    """
    digest = hashlib.sha256()
    for name, tensor in named:
        kind = _NUMPY.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")
        digest.update(f"{name} {kind} {tuple(tensor.shape)}\n".encode())
        values = tensor.detach().cpu().reshape(-1)
        digest.update(values.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def model_digest(model: nn.Module) -> str:
    """Return the sha256 of all that a model's file holds, in the order of the names, as hex.

    These are its parameters and its persistent buffers. Tied tensors count once, under the first of their names. It is
    also what :func:`assay.evidence.tensors.tensors_digest` finds in the files of a model that was saved under the same
    names.
    """
    return weights_digest(sorted(distinct(model)))


def distinct(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield a model's parameters and persistent buffers by name, tied ones once, under the first of their names."""
    seen = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor
