"""TRL 1.16 at the log-prob boundary: its own scoring of a rollout and its own loss, in float64.

Two methods of ``GRPOTrainer`` and ``RLOOTrainer`` are called on a stand-in for the trainer.
``_generate_and_score_completions`` turns prescribed responses and rewards into masks, old and reference
log-probabilities, sampler weights and advantages; ``_compute_loss`` turns those into the loss. The stand-in's model is
a table of log-probabilities, so that both run on the audit's tensors. What TRL's trainer does around them is in
:mod:`assay.audit.adapters.trl_trainer`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.adapters.trl_settings import in_force, objective, trl_class, trl_config, trl_versions
from assay.audit.adapters.trl_stand_in import Library, Rollout, laid_out, stand_in
from assay.audit.call import Loss, asking_for
from assay.audit.check import SubjectError
from assay.audit.subjects import Maker, Subject
from assay.core.full_vocabulary import token_entropy

MOST_MICRO_BATCHES = 100
READS = ("logp", "logp_old", "logp_ref", "logp_sampler", "reward", "mask", "group", "truncated")
TOLERANCE = 1e-7
WHY = "TRL's code is executed on float64 tensors, and makes Bessel's correction and its token counts in float32"
REACHES = (
    "TRL's own advantages, masks, old log-probabilities, sampler weights and token count "
    "(_generate_and_score_completions) and its loss (_compute_loss)"
)
MISSES = (
    "generation, TRL's model head and reward calls, which are float32 there and float64 here; rows come sorted by "
    "prompt, as TRL's sampler lays them out; padded prompts, whose positions shift; the shuffle into micro-batches is "
    "averaged over rather than drawn; what lies under the mask is zero, as TRL's head leaves it"
)
GRPO_MISSES = f"{MISSES}; adaptive entropy, which has a memory; more than one process"
RLOO_MISSES = f"{MISSES}; the division by gradient_accumulation_steps is Transformers' and is repeated here"


def grpo(pairs: Mapping[str, str]) -> Subject:
    """Make the subject ``trl.grpo`` from TRL's own settings."""
    return _subject("GRPO", pairs, GRPO_MISSES)


def rloo(pairs: Mapping[str, str]) -> Subject:
    """Make the subject ``trl.rloo`` from TRL's own settings."""
    return _subject("RLOO", pairs, RLOO_MISSES)


SUBJECTS: dict[str, Maker] = {"trl.grpo": grpo, "trl.rloo": rloo}


def _subject(trainer: str, pairs: Mapping[str, str], misses: str) -> Subject:
    config = trl_config(trainer, pairs)
    return Subject(
        f"trl.{trainer.lower()}",
        _loss(Library(trainer, trl_class(trainer, "Trainer"), config)),
        objective=objective(trainer, config),
        settings=in_force(trainer, config),
        versions=trl_versions(),
        reaches=REACHES,
        misses=misses,
        tolerance=TOLERANCE,
        why=WHY,
    )


def _loss(library: Library) -> Loss:
    """Return a loss that asks for logits only where TRL's settings make the entropy count."""
    quantile = getattr(library.config, "top_entropy_quantile", 1.0)
    reads_entropy = quantile < 1 or getattr(library.config, "entropy_coef", 0.0) != 0

    def loss(given: dict[str, Tensor]) -> Tensor:
        entropy = _entropy(given, quantile) if reads_entropy else torch.zeros_like(given["mask"])
        return _window(library, laid_out(given, entropy))

    return asking_for((*READS, "logits") if reads_entropy else READS, loss)


def _entropy(given: dict[str, Tensor], quantile: float) -> Float[Tensor, "B T"]:
    entropy = token_entropy(given["logits"], given["mask"] > 0)
    if quantile < 1:  # float32 as TRL's head returns them and its quantile takes them; the gradient stays
        entropy = entropy + (entropy.float().double() - entropy).detach()
    return entropy


def _window(library: Library, rollout: Rollout) -> Tensor:
    """Return the loss whose gradient one optimizer step applies, meaned over how TRL shuffles rows to micro-batches.

    A generation is dealt to S micro-batches and K of them make a step, so that the mean step has the gradient of
    K/S times their sum; and over a uniform shuffle that sum is S times the mean over all micro-batches there can be.
    """
    trainer, config = library.trainer, library.config
    count, parts = len(rollout.reward), config.steps_per_generation
    if count % parts:
        raise SubjectError(f"{count} responses cannot be split into steps_per_generation = {parts} micro-batches")
    made = stand_in(library, rollout)
    scored = trainer._generate_and_score_completions(made, [{"prompt": str(row)} for row in range(count)])
    losses = []
    for rows in _micro_batches(count, count // parts):
        part = {name: value[list(rows)] if value.ndim else value for name, value in scored.items()}
        losses.append(trainer._compute_loss(made, rollout.policy, part))
    mean: Tensor = torch.stack(losses).mean()
    return mean if library.name == "RLOO" else mean * config.gradient_accumulation_steps


def _micro_batches(count: int, size: int) -> Iterable[tuple[int, ...]]:
    """Return every micro-batch that a shuffle can make; where they are too many, those of the order that is given.

    The latter means the same wherever a micro-batch's loss is a sum over its rows. Where it is not, the loss depends on
    the order of its rows, which an audit finds out.
    """
    if math.comb(count, size) <= MOST_MICRO_BATCHES:
        return itertools.combinations(range(count), size)
    return [tuple(range(start, start + size)) for start in range(0, count, size)]
