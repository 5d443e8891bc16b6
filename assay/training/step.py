"""One guarded update. A gradient that is missing or not finite stops the run; nothing is papered over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.errors import UpdateError


@dataclass(frozen=True)
class Update:
    """What one update did.

    Attributes:
        grad_norm: Euclidean norm of the whole gradient before clipping.
        clipped_grad_norm: the same after clipping.
        tensor_norms: norm of each parameter's gradient before clipping, by name.
    """

    grad_norm: float
    clipped_grad_norm: float
    tensor_norms: dict[str, float]


def apply_update(
    policy: nn.Module, optimizer: torch.optim.Optimizer, loss: Float[Tensor, ""], *, max_grad_norm: float, place: str
) -> Update:
    """Clear the gradients, differentiate the loss, check every gradient, clip, and step.

    Clipping and AdamW come after the unbiased gradient: the step that is applied is not that gradient times a rate.

    Args:
        policy: the module whose parameters ``optimizer`` holds.
        optimizer: steps once.
        loss: scalar to minimise, connected to every parameter.
        max_grad_norm: gradients are scaled down to this norm when they exceed it.
        place: phase and step, for the message.

    Raises:
        UpdateError: a parameter has no gradient, or one that is not finite, and the weights are untouched; or the
            step itself made a weight that is not finite, and the last checkpoint is before it.
    """
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    return apply_gradients(policy.named_parameters(), optimizer, max_grad_norm=max_grad_norm, place=place)


def apply_gradients(
    named: Iterable[tuple[str, nn.Parameter]], optimizer: torch.optim.Optimizer, *, max_grad_norm: float, place: str
) -> Update:
    """Check every gradient, clip, and step, as :func:`apply_update` does once it has differentiated.

    Args:
        named: every parameter that is trained, with its whole gradient.
        optimizer: holds them; steps once.
        max_grad_norm: gradients are scaled down to this norm when they exceed it.
        place: phase and step, for the message.

    Raises:
        UpdateError: as :func:`apply_update`.
    """
    names: list[str] = []
    parameters: list[Tensor] = []
    gradients: list[Tensor] = []
    for name, parameter in named:
        if parameter.grad is None:
            raise UpdateError(f"{place}: parameter {name} has no gradient; the loss does not reach it")
        names.append(name)
        parameters.append(parameter)
        gradients.append(parameter.grad)
    norms = torch.stack(torch._foreach_norm(gradients))
    tensor_norms = dict(zip(names, norms.tolist(), strict=True))
    for name, norm in tensor_norms.items():
        if not norm < float("inf"):
            raise UpdateError(f"{place}: the gradient of parameter {name} is not finite (norm {norm}); run stopped")
    total = torch.linalg.vector_norm(norms)
    if not bool(total.isfinite()):
        raise UpdateError(
            f"{place}: the norm of the whole gradient is {float(total)}, too large for float32; run stopped"
        )
    scale = (max_grad_norm / (total + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_ has it
    torch._foreach_mul_(gradients, scale)
    optimizer.step()
    finite = torch.stack(torch._foreach_norm(parameters)).isfinite().tolist()
    if not all(finite):
        name = names[finite.index(False)]
        raise UpdateError(f"{place}: parameter {name} is not finite after the step; lower the learning rate")
    return Update(float(total), float(total * scale), tensor_norms)
