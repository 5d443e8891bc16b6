"""In which precision someone's code computes, and which tolerance that leaves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

COARSE = 1e-5
"""Relative tolerance of what computes in float32 somewhere: a few hundred roundings."""
COARSEST = 0.05
"""The same for half precision."""


class Precisions(TorchFunctionMode):
    """Remembers the least precise floating type of any tensor that is made inside its ``with`` block.

    A single number does not count, since a constant has torch's default type; :meth:`see` what is returned. Whole
    numbers do not count either: zeros, masks and counts are exact in any type.

    Attributes:
        coarsest: float64 until a coarser one is seen.
    """

    coarsest = torch.float64

    def see(self, made: Tensor) -> None:
        """Count a tensor, a single number too, such as one that is returned."""
        if made.is_floating_point():
            self.coarsest = max(self.coarsest, made.dtype, key=lambda dtype: torch.finfo(dtype).eps)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch and look at what it made."""
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, Tensor) and tensor.numel() > 1 and _rounds(tensor):
                self.see(tensor)
        return made


def _rounds(made: Tensor) -> bool:
    """Return whether a tensor is of a coarse type and holds more than whole numbers; one without storage does not."""
    if not made.is_floating_point() or made.dtype is torch.float64 or made.is_meta:
        return False
    return not bool((made.detach() == made.detach().round()).all())


def tolerance_for(coarsest: torch.dtype, tolerance: float, why: str = "") -> tuple[float, str]:
    """Return the relative tolerance of a subject, and why it is that.

    Args:
        coarsest: the least precise floating type that it computed in.
        tolerance: of one that computes in float64; kept where it is wider than the precision asks for.
        why: why it is that.
    """
    wider = {torch.float64: 0.0, torch.float32: COARSE}.get(coarsest, COARSEST)
    if wider <= tolerance:
        return tolerance, why
    return wider, f"the subject computes in {str(coarsest).removeprefix('torch.')}"
