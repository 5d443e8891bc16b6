"""Token returns and their whitening: what REINFORCE++ makes of a reward."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.core.masking import at_last_token, masked, to_go


def reward_to_go(
    reward: Float[Tensor, " B"], penalty: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Return the reward, earned at the last token, minus the penalties at each token and after it.

    Estimand of ``Σ_t A_t ∇logp_t`` on-policy: the gradient of the expected reward minus the expected sum of penalties,
    where a penalty may depend on its own token and all before it: what came earlier cannot be changed by a later
    token, and its expected product with a later score is zero.

    Source: Hu et al., "REINFORCE++", 2025.

    Args:
        reward: of each response.
        penalty: at each token, detached.
        mask: true at the tokens that the policy chose.
    """
    return masked(to_go(at_last_token(reward, mask) - masked(penalty, mask)), mask)


def whitened(values: Float[Tensor, "B _"], mask: Bool[Tensor, "B T"], *, eps: float) -> Float[Tensor, "B T"]:
    """Subtract the mean and divide by ``std + eps``, both over the tokens of the whole batch.

    Estimand: as the batch grows, that of the values divided by their deviation; the mean becomes a constant baseline.
    In a small batch both depend on the response's own values, and on which other problems are in it. The deviation has
    Bessel's correction. A batch of equal values gives exactly zero.

    Source: Hu et al., "REINFORCE++", 2025.

    Args:
        values: a number for each token, or one for each response, ``[B, 1]``.
        mask: true at the tokens that the policy chose.
        eps: added to the deviation.
    """
    spread = values.expand_as(mask)[mask]
    if len(spread) < 2 or bool(spread.max() == spread.min()):
        return masked(torch.zeros_like(values), mask)
    return masked((values - spread.mean()) / (spread.std() + eps), mask)
