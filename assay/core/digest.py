"""The digest of a set of weights: equal exactly when every name, shape, type and byte is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from torch import Tensor


def weights_digest(named: Iterable[tuple[str, Tensor]]) -> str:
    """Return the sha256 of named tensors, in their given order, as hex.

    Args:
        named: pairs of name and CPU tensor, such as ``policy.named_parameters()`` yields.
    """
    digest = hashlib.sha256()
    for name, tensor in named:
        values = tensor.detach().contiguous().numpy()
        digest.update(f"{name} {values.dtype.str} {values.shape}\n".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()
