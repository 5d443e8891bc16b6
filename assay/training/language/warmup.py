"""Supervised steps before RL: the likelihood of the right answers, as the model itself would say them."""

from __future__ import annotations

from collections.abc import Sequence

from assay.core.losses import likelihood_terms, weighted_loss
from assay.core.weights import sequence_mean
from assay.policies.causal.model import CausalPolicy
from assay.training.language.batch import Batch, spread
from assay.training.language.update import enough_memory


def differentiate_likelihood(policy: CausalPolicy, batch: Batch, *, budget: int) -> float:
    """Add the gradient of the mean negative log-likelihood of a batch's responses, and return its value in nats.

    The unit is the response: the sum over its tokens, its ending included, and not their mean. Prompts are read and
    not learnt.

    Args:
        policy: the policy that is trained, at temperature 1.
        batch: one right answer a prompt.
        budget: most tokens that are read at once.

    Raises:
        UpdateError: memory ran out.
    """
    total = 0.0
    rows: Sequence[int] = range(len(batch.responses))
    for part in batch.parts(rows, budget):
        with enough_memory(budget):
            flat = policy.token_logp(batch.part(part).to(policy.device)).logp
            logp = spread(flat, batch.mask[list(part)]).sum(1)
            weights = sequence_mean(len(part), total=len(rows), dtype=logp.dtype).to(logp.device)
            loss = weighted_loss(likelihood_terms(logp), weights)
            loss.backward()
        total += float(loss.detach())
    return total
