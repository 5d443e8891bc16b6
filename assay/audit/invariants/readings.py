"""Reading numbers and tensors out of what someone's function returned."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.check import SubjectError, foreign


def number_of(what: str, made: Any) -> float:
    """Return the one number in what a function returned; NaN and infinities are numbers here.

    Args:
        what: how a message names the function, such as ``"the estimator"``.
        made: a number, or a tensor or array of one.

    Raises:
        SubjectError: there is no number in it, or more than one.
    """
    try:
        if isinstance(made, str | bytes):
            raise TypeError("a text is no number")
        return float(made.detach() if isinstance(made, Tensor) else made)
    except Exception as error:
        raise SubjectError(f"{what} returned {_form(made)}; it must return one number") from error


def finite_of(what: str, made: Any) -> float:
    """Return the one number in what a function returned.

    Raises:
        SubjectError: as :func:`number_of`, or it is not finite.
    """
    value = number_of(what, made)
    if not math.isfinite(value):
        raise SubjectError(f"{what} returned {value}; it must return a finite number")
    return value


def tensor_of(what: str, made: Any, shape: tuple[int, ...]) -> Float[Tensor, "*shape"]:
    """Return what a function returned as a float64 tensor of its own, cut from any graph.

    Args:
        what: how a message names the function.
        made: a tensor of real numbers.
        shape: that it must have.

    Raises:
        SubjectError: it is no such tensor.
    """
    if not isinstance(made, Tensor) or made.shape != shape or made.is_complex():
        raise SubjectError(f"{what} returned {_form(made)}; need a tensor of real numbers of shape {tuple(shape)}")
    values: Tensor = foreign(f"reading what {what} returned", lambda: made.detach().double().cpu().clone())
    return values


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


def _form(made: Any) -> str:
    if not isinstance(made, Tensor):
        return type(made).__name__
    return f"a complex tensor {tuple(made.shape)}" if made.is_complex() else str(tuple(made.shape))
