"""The gradient of a batch, summed over its parts. No choice of parts changes it: every count is the batch's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.core.estimator import Algorithm, Prepared, loss
from assay.core.settings import PLACEMENTS, Settings
from assay.errors import UpdateError
from assay.policies.causal.model import CausalPolicy
from assay.training.language.batch import Batch, spread


@dataclass(frozen=True)
class Drawing:
    """How responses are drawn, and therefore scored.

    Attributes:
        temperature: logits are divided by it.
        top_k: tokens that may be drawn; 0 for all.
        top_p: mass of the tokens that may be drawn.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


@dataclass(frozen=True)
class Pass:
    """What one pass over a batch found, beside the gradients that it left on the parameters.

    Attributes:
        loss: its value.
        logp: of every token that was scored, ``[B, T]``; zero elsewhere.
        entropy: likewise.
        scored: the tokens that were scored.
    """

    loss: float
    logp: Float[Tensor, "B T"]
    entropy: Float[Tensor, "B T"]
    scored: Bool[Tensor, "B T"]


def differentiate(
    policy: CausalPolicy,
    batch: Batch,
    prepared: Prepared,
    algorithm: Algorithm,
    settings: Settings,
    *,
    drawing: Drawing,
    budget: int,
    reference: CausalPolicy | None = None,
    logp_old: Float[Tensor, "B T"] | None = None,
) -> Pass:
    """Add the gradient of a batch's loss to the parameters' own, a part at a time.

    Rows that can have no gradient, because their advantage is zero and nothing but the advantage is ascended, are not
    computed; they are in every count.

    Args:
        policy: the policy that is trained.
        batch: the responses.
        prepared: the same rows, with advantages and the counts of the whole batch.
        algorithm: what is ascended.
        settings: of it.
        drawing: how the responses were drawn.
        budget: most tokens that are read at once.
        reference: needed where an exact KL is in the loss.
        logp_old: log-probabilities under the policy when the update began; None at its first pass, where they are
            those of the policy itself, so that every ratio is exactly 1.

    Raises:
        UpdateError: memory ran out; a smaller budget is named.
    """
    exact = reference if settings.kl in PLACEMENTS and PLACEMENTS[settings.kl].logits else None
    table = torch.zeros_like(prepared.rows.logp)
    entropy, scored, total = table.clone(), torch.zeros_like(prepared.rows.mask), 0.0
    for rows in batch.parts(_moving(prepared, settings), budget):
        index = torch.tensor(rows)
        mask = batch.mask[index]
        with enough_memory(budget):
            made = policy.token_logp(batch.part(rows).to(policy.device), **dataclasses.asdict(drawing), reference=exact)
            logp = spread(made.logp, mask)
            taken = prepared.take(index)
            columns = dataclasses.replace(
                taken.rows,
                logp=logp,
                logp_old=logp.detach() if logp_old is None else logp_old[index],
                entropy=spread(made.entropy, mask),
                token_kl=None if made.kl is None else spread(made.kl, mask),
            )
            value = loss(algorithm, settings, dataclasses.replace(taken, rows=columns))
            value.backward()
        table[index], scored[index] = logp.detach().to(table.dtype), mask.to(table.device)
        entropy[index] = spread(made.entropy.detach(), mask).to(table.dtype)
        total += float(value.detach())
    return Pass(total, table, entropy, scored)


@torch.no_grad()
def score(policy: CausalPolicy, batch: Batch, *, drawing: Drawing, budget: int) -> Float[Tensor, "B T"]:
    """Return the log-probability of every token of a batch, without gradient; zero where there is none."""
    parts = batch.parts(range(len(batch.responses)), budget)
    with enough_memory(budget):
        flat = [
            policy.token_logp(batch.part(rows).to(policy.device), **dataclasses.asdict(drawing)).logp for rows in parts
        ]
    return spread(torch.cat(flat), batch.mask)


def _moving(prepared: Prepared, settings: Settings) -> Sequence[int]:
    """Return the rows that can have a gradient."""
    in_loss = bool(settings.entropy) or settings.kl not in ("none", "reward", "reward_to_go")
    moving = prepared.rows.mask.any(1) if in_loss else (prepared.adv != 0).any(1)
    rows: list[int] = moving.nonzero()[:, 0].tolist()
    return rows


@contextmanager
def enough_memory(budget: int) -> Iterator[None]:
    """Turn a failed allocation into an error that names a smaller budget.

    Raises:
        UpdateError: memory ran out.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError):
            if "allocate memory" not in str(error) and "not enough memory" not in str(error):
                raise
        raise UpdateError(
            f"policy.token_budget = {budget}: memory ran out reading that many tokens at once; the weights are "
            f"untouched, resume with {max(budget // 2, 1)}, or with policy.gradient_checkpointing = true"
        ) from error
