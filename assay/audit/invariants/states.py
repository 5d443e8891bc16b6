"""What is not the same in two states: tensors, arrays, numbers, text, and mappings and sequences of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.audit.check import SubjectError, foreign

State = Mapping[str, Any]
"""Tensors, arrays, numbers, text, and mappings and sequences of them, by name."""


def differences(a: Any, b: Any, tolerance: float = 0.0, name: str = "") -> Iterator[str]:
    """Yield what is not the same in two values, each with its name and both.

    Args:
        a: one, nested where it likes.
        b: the other, which differences are relative to.
        tolerance: 0 for bit for bit; else relative to the largest finite entry of each tensor.
        name: of the value, inside whatever holds it.

    Raises:
        SubjectError: something can only be told apart by identity, or does not let itself be compared.
    """
    a, b = _as_tensor(a), _as_tensor(b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in sorted(a.keys() | b.keys(), key=str):
            inner = f"{name}.{key}" if name else str(key)
            if key not in a or key not in b:
                yield f"{inner} is {'missing' if key not in a else 'unexpected'}"
            else:
                yield from differences(a[key], b[key], tolerance, inner)
    elif isinstance(a, Tensor) and isinstance(b, Tensor):
        yield from foreign(f"the comparison of {name}", _tensor_difference, a.detach(), b.detach(), tolerance, name)
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        for place, (left, right) in enumerate(zip(a, b, strict=True)):
            yield from differences(left, right, tolerance, f"{name}[{place}]")
    elif isinstance(a, Tensor) or isinstance(b, Tensor) or type(a) is not type(b) or not _equal(a, b, name):
        yield f"{name} is {_short(a)}, not {_short(b)}"


def _tensor_difference(a: Tensor, b: Tensor, tolerance: float, name: str) -> list[str]:
    if a.shape != b.shape or a.is_complex() != b.is_complex() or (a.dtype != b.dtype and not tolerance):
        return [f"{name} is {a.dtype} {tuple(a.shape)}, not {b.dtype} {tuple(b.shape)}"]
    same = _near(a, b, tolerance) if tolerance else _identical(a, b)
    if bool(same.all()):
        return []
    place = tuple(int(i) for i in (~same).nonzero()[0])
    count = f" (and {int((~same).sum()) - 1} more of {same.numel()})" if int((~same).sum()) > 1 else ""
    return [f"{name}{list(place) if place else ''} is {a[place].item()!r}, not {b[place].item()!r}{count}"]


def _identical(a: Tensor, b: Tensor) -> Tensor:
    """Return where entries are the same bit for bit, but for the payload of a NaN."""
    if a.is_complex():
        return _identical(_parts(a), _parts(b)).all(-1)
    return (a == b) & (a.signbit() == b.signbit()) | (a.isnan() & b.isnan())


def _near(a: Tensor, b: Tensor, tolerance: float) -> Tensor:
    """Return where entries are within a tolerance of the largest finite one; the same infinities are, and NaN is."""
    if a.is_complex():
        return _near(_parts(a), _parts(b), tolerance).all(-1)
    a, b = a.double(), b.double()
    finite = b[b.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return (a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= tolerance * largest)


def _parts(values: Tensor) -> Tensor:
    return torch.view_as_real(values.resolve_conj())


def _as_tensor(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    return torch.from_numpy(value.copy()) if value.dtype.kind in "biufc" else value.tolist()


def _equal(a: Any, b: Any, name: str) -> bool:
    if a is b:
        return True
    kind: Any = type(a)
    if kind.__eq__ is object.__eq__:
        raise SubjectError(
            f"{name} is {_short(a)}, which says nothing of what it holds; save tensors, numbers and text"
        )
    same = bool(foreign(f"the comparison of {name}", lambda: bool(a == b)))
    return same or (isinstance(a, float) and a != a and b != b)


def _short(value: Any) -> str:
    text = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else str(foreign("repr", repr, value))
    return text if len(text) <= 60 else f"{text[:57]}..."
