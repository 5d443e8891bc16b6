"""The KL penalty, where it enters the objective."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def kl_in_reward(
    reward: Float[Tensor, " B"], logp: Float[Tensor, " B"], logp_ref: Float[Tensor, " B"], *, beta: float
) -> Float[Tensor, " B"]:
    """Return the detached return ``R_i = reward_i - beta (logp_i - logp_ref_i)``.

    ``logp_i - logp_ref_i`` (k1, at sequence level) estimates KL(policy ‖ reference) from samples of the policy.
    Inside a detached return its expected gradient is exactly that of ``-beta KL(policy ‖ reference)``,
    because the score has mean zero; the same k1 placed in the *loss* has expected gradient zero.

    A right response with log-ratio +0.5 returns 0.985 at beta 0.03, a wrong one with log-ratio -0.2
    returns +0.006: a positive return does not mean that the verifier accepted anything.

    Source: Stiennon et al., "Learning to summarize from human feedback", 2020, section 3.4.

    Args:
        reward: the verifier's score of each response.
        logp: the response's log-probability under the policy, summed over its tokens, in nats.
        logp_ref: the same under the frozen reference.
        beta: weight of the penalty, in reward per nat.

    Returns:
        Returns that carry no gradient.
    """
    return (reward - beta * (logp - logp_ref)).detach()
