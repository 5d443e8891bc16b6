"""Exact scalars by enumeration: expected reward, divergence from the reference, the objective RL ascends."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from assay.errors import InputError

MASS_TOLERANCE = 1e-9


def check_mass(logp: Float[Tensor, "P M"], *, tolerance: float = MASS_TOLERANCE) -> float:
    """Return the largest distance of a problem's total probability from one.

    Raises:
        InputError: it exceeds ``tolerance``: trajectories are missing, double, or scored wrongly.
    """
    error = float((logp.detach().exp().sum(1) - 1).abs().max())
    if not error <= tolerance:
        raise InputError(f"trajectory probabilities sum to one only within {error:.3g} (tolerance {tolerance})")
    return error


def expected_reward(logp: Float[Tensor, "P M"], reward: Float[Tensor, "P M"]) -> Float[Tensor, " P"]:
    """Return ``Σ_y p(y) r(y)`` of each problem, differentiable in ``logp``."""
    return (logp.exp() * reward).sum(1)


def sequence_kl(logp: Float[Tensor, "P M"], logp_ref: Float[Tensor, "P M"]) -> Float[Tensor, " P"]:
    """Return ``KL(policy ‖ reference) = Σ_y p(y) (logp(y) - logp_ref(y))`` of each problem, in nats."""
    return (logp.exp() * (logp - logp_ref)).sum(1)


def penalised_reward(
    logp: Float[Tensor, "P M"], logp_ref: Float[Tensor, "P M"], reward: Float[Tensor, "P M"], *, beta: float
) -> Float[Tensor, " P"]:
    """Return the objective ``J = Σ_y p(y) (r(y) - beta (logp(y) - logp_ref(y)))`` of each problem."""
    return expected_reward(logp, reward) - beta * sequence_kl(logp, logp_ref)
