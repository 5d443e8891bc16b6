"""What someone's code returned, as numbers that can be compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from assay.audit.check import SubjectError, foreign


def numbers_of(what: str, made: Any) -> Tensor:
    """Return a tensor of someone's code in float64, dense and on the CPU, on the graph that it came with.

    Args:
        what: who returned it, such as ``"the update"``.
        made: what it returned.

    Raises:
        SubjectError: it is no tensor, holds complex numbers, or cannot be read.
    """
    if not isinstance(made, Tensor):
        raise SubjectError(f"{what} returned {type(made).__name__}; it must return a tensor")
    if made.is_complex():
        raise SubjectError(f"{what} returned complex numbers; it must return real ones")
    read: Tensor = foreign(f"reading what {what} returned", lambda: made.to_dense().cpu().to(torch.float64))
    return read
