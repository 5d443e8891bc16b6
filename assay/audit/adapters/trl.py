"""TRL 1.16 at the log-prob boundary: its own scoring of a rollout and its own loss, in float64.

Two methods of ``GRPOTrainer`` and ``RLOOTrainer`` are called on a stand-in for the trainer.
``_generate_and_score_completions`` turns prescribed responses and rewards into masks, old and reference
log-probabilities, sampler weights and advantages; ``_compute_loss`` turns those into the loss. The stand-in's model is
a table of log-probabilities, so that both run on the audit's tensors. What TRL's trainer does around them is in
:mod:`assay.audit.adapters.trl_trainer`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.adapters.trl_settings import in_force, objective, trl_class, trl_config, trl_versions
from assay.audit.call import Loss
from assay.audit.check import SubjectError
from assay.audit.subjects import Maker, Subject

END, PADDING = -1, -2
"""Stand-in ids; TRL asks of a response's last token only whether it is one of them."""
MOST_MICRO_BATCHES = 100
_LOGS = ("prompt", "completion", "advantages", "images")
TOLERANCE = 1e-7
WHY = "TRL's code is executed on float64 tensors, and makes Bessel's correction and its token counts in float32"
REACHES = (
    "TRL's own advantages, masks, old log-probabilities, sampler weights and token count "
    "(_generate_and_score_completions) and its loss (_compute_loss)"
)
MISSES = (
    "generation, TRL's model head and reward calls, which are float32 there and float64 here; rows come sorted by "
    "prompt, as TRL's sampler lays them out; the shuffle into micro-batches is averaged over rather than drawn; what "
    "lies under the mask is zero, as TRL's head leaves it"
)
GRPO_MISSES = f"{MISSES}; adaptive entropy, which has a memory; more than one process"
RLOO_MISSES = f"{MISSES}; the division by gradient_accumulation_steps is Transformers' and is repeated here"


@dataclass(eq=False)
class _Table:
    """Stands in for a model: the log-probability and the entropy of every row's tokens, ``[B, T]``."""

    logp: Float[Tensor, "B T"]
    entropy: Float[Tensor, "B T"]
    training: bool = True
    is_gradient_checkpointing: bool = False


@dataclass(frozen=True)
class _Library:
    """TRL's trainer, its class and its configuration; ``name`` is ``"GRPO"`` or ``"RLOO"``."""

    name: str
    trainer: Any
    config: Any


@dataclass(frozen=True)
class _Rollout:
    """A batch in TRL's order, group after group.

    Attributes:
        policy: the trained policy; carries the gradient.
        old: the policy when the update began.
        reference: the reference.
        sampler: log-probabilities of what drew the responses.
        reward: of each row.
        mask: 1.0 where a token was sampled.
        truncated: whether a response stopped at the longest length.
        group_size: rows of each group.
    """

    policy: _Table
    old: _Table
    reference: _Table
    sampler: Float[Tensor, "B T"]
    reward: Float[Tensor, " B"]
    mask: Float[Tensor, "B T"]
    truncated: Tensor
    group_size: int


def grpo(pairs: Mapping[str, str]) -> Subject:
    """Make the subject ``trl.grpo`` from TRL's own settings."""
    config = trl_config("GRPO", pairs)
    needs_entropy = config.entropy_coef != 0 or config.top_entropy_quantile < 1
    return _subject("GRPO", config, _with_entropy if needs_entropy else _without_entropy, GRPO_MISSES)


def rloo(pairs: Mapping[str, str]) -> Subject:
    """Make the subject ``trl.rloo`` from TRL's own settings."""
    config = trl_config("RLOO", pairs)
    return _subject("RLOO", config, _without_entropy, RLOO_MISSES)


SUBJECTS: dict[str, Maker] = {"trl.grpo": grpo, "trl.rloo": rloo}


def _subject(trainer: str, config: Any, make: Callable[[_Library], Loss], misses: str) -> Subject:
    library = _Library(trainer, trl_class(trainer, "Trainer"), config)
    return Subject(
        f"trl.{trainer.lower()}",
        make(library),
        objective=objective(trainer, config),
        settings=in_force(trainer, config),
        versions=trl_versions(),
        reaches=REACHES,
        misses=misses,
        tolerance=TOLERANCE,
        why=WHY,
    )


def _without_entropy(library: _Library) -> Loss:
    def loss(
        logp: Tensor,
        logp_old: Tensor,
        logp_ref: Tensor,
        logp_sampler: Tensor,
        reward: Tensor,
        mask: Tensor,
        group: Tensor,
        truncated: Tensor,
    ) -> Tensor:
        entropy = torch.zeros_like(mask)
        made = _rollout(logp, logp_old, logp_ref, logp_sampler, reward, mask, group, truncated, entropy)
        return _window(library, made)

    return loss


def _with_entropy(library: _Library) -> Loss:
    def loss(
        logp: Tensor,
        logp_old: Tensor,
        logp_ref: Tensor,
        logp_sampler: Tensor,
        reward: Tensor,
        mask: Tensor,
        group: Tensor,
        truncated: Tensor,
        logits: Tensor,
    ) -> Tensor:
        every = logits.log_softmax(-1)
        entropy = -(every.exp() * every).sum(-1)
        if (
            library.config.top_entropy_quantile < 1
        ):  # TRL takes the quantile of float32 numbers, and its head returns those
            entropy = entropy + (entropy.float().double() - entropy).detach()
        made = _rollout(logp, logp_old, logp_ref, logp_sampler, reward, mask, group, truncated, entropy)
        return _window(library, made)

    return loss


def _rollout(
    logp: Tensor,
    logp_old: Tensor,
    logp_ref: Tensor,
    logp_sampler: Tensor,
    reward: Tensor,
    mask: Tensor,
    group: Tensor,
    truncated: Tensor,
    entropy: Tensor,
) -> _Rollout:
    """Lay a batch out as TRL does: group after group, zero where there is no token."""
    order = group.argsort(stable=True)
    sizes = torch.bincount(group)
    sizes = sizes[sizes > 0]
    if bool((sizes != sizes[0]).any()):
        raise SubjectError(f"TRL's groups are all of one size, these have {sizes.tolist()} responses")
    rows = mask[order]

    def laid_out(values: Tensor) -> Tensor:
        return values[order].masked_fill(rows == 0, 0.0)

    def table(values: Tensor) -> _Table:
        return _Table(laid_out(values), laid_out(entropy))

    tables = table(logp), table(logp_old.detach()), table(logp_ref.detach())
    return _Rollout(*tables, laid_out(logp_sampler), reward[order], rows, truncated[order], int(sizes[0]))


def _window(library: _Library, rollout: _Rollout) -> Tensor:
    """Return the loss whose gradient one optimizer step applies, meaned over how TRL shuffles rows to micro-batches.

    A generation is dealt to S micro-batches and K of them make a step, so that the mean step has the gradient of
    K/S times their sum; and over a uniform shuffle that sum is S times the mean over all micro-batches there can be.
    """
    trainer, config = library.trainer, library.config
    count, parts = len(rollout.reward), config.steps_per_generation
    if count % parts:
        raise SubjectError(f"{count} responses cannot be split into steps_per_generation = {parts} micro-batches")
    stand_in = _stand_in(library, rollout)
    scored = trainer._generate_and_score_completions(stand_in, [{"prompt": str(row)} for row in range(count)])
    losses = []
    for rows in _micro_batches(count, count // parts):
        part = {name: value[list(rows)] if value.ndim else value for name, value in scored.items()}
        losses.append(trainer._compute_loss(stand_in, rollout.policy, part))
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


def _stand_in(library: _Library, rollout: _Rollout) -> SimpleNamespace:
    """Return what TRL's two methods read of their trainer: its settings under the names that its constructor gives
    them, one process, and the rollout in place of generation, reward functions and model."""
    config, made = library.config, _generated(library, rollout)

    def score(model: _Table, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, *_: Any, **__: Any) -> Any:
        rows = input_ids[:, 0]
        return model.logp[rows, :logits_to_keep], model.entropy[rows, :logits_to_keep], None

    parts = {
        **vars(config),
        "args": config,
        "num_generations": rollout.group_size,
        "epsilon_low": config.epsilon,
        "epsilon_high": config.epsilon if config.epsilon_high is None else config.epsilon_high,
        "current_gradient_accumulation_steps": config.gradient_accumulation_steps,
        "_entropy_bonus_enabled": getattr(config, "entropy_coef", 0.0) != 0,
        "aux_loss_enabled": False,
        "reward_funcs": [None],
        "reward_func_names": ["reward"],
        "reward_weights": torch.ones(1, dtype=torch.float64),
        "tools": None,
        "environments": None,
        "environment_factories": None,
        "_is_vlm": False,
        "_tokenizer": SimpleNamespace(pad_token_id=PADDING),
        "eos_token_ids": [END],
        "model": rollout.old,
        "ref_model": rollout.reference,
        "accelerator": _one_process(),
        "_metrics": {"train": defaultdict(list)},
        "_logs": {"rewards": defaultdict(list), "extra": defaultdict(list), **{n: [] for n in _LOGS}},
        "_pending_extra_logs": {},
        "_pending_metrics": {},
        "_generate": lambda prompts: made,
        "_calculate_rewards": lambda *_: rollout.reward[:, None],
        "_get_per_token_logps_and_entropies": score,
    }
    stand_in = SimpleNamespace(**parts)
    if library.name == "GRPO":
        for name in ("get_off_policy_mask", "get_gamma_weights"):
            setattr(stand_in, name, getattr(library.trainer, name))
        stand_in.get_high_entropy_mask = functools.partial(library.trainer.get_high_entropy_mask, stand_in)
    return stand_in


def _generated(library: _Library, rollout: _Rollout) -> tuple[Any, ...]:
    """Return what ``_generate`` returns: token ids of prompts and responses, and for GRPO which of them the policy
    chose and what the sampler says of them.

    A prompt is the number of its row, which is how a micro-batch finds its log-probabilities again.
    """
    width = rollout.mask.shape[1]
    lengths = (rollout.mask * torch.arange(1, width + 1)).amax(1).long().tolist()
    chosen = [row[:length] for row, length in zip(rollout.mask.long().tolist(), lengths, strict=True)]
    prompts = [[row] for row in range(len(lengths))]
    responses = [
        [0] * (length - 1) + [0 if cut else END]
        for length, cut in zip(lengths, rollout.truncated.tolist(), strict=True)
    ]
    spoken_to = any(0 in row for row in chosen)
    if library.name == "RLOO":
        if spoken_to:
            raise SubjectError("TRL's RLOO trains on every token of a response; it cannot leave out what was given")
        return prompts, responses, responses
    sampler = [list(row[:length]) for row, length in zip(rollout.sampler, lengths, strict=True)]
    nothing: dict[str, Any] = {}
    chosen_or_all = chosen if spoken_to else None
    return (
        prompts,
        responses,
        chosen_or_all,
        responses,
        sampler if library.config.use_vllm else None,
        nothing,
        None,
        None,
    )


def _one_process() -> SimpleNamespace:
    """Return the accelerator of a run on one processor."""
    return SimpleNamespace(
        device=torch.device("cpu"),
        num_processes=1,
        process_index=0,
        sync_gradients=True,
        gather=lambda values: values,
        gather_for_metrics=lambda values: values,
        pad_across_processes=lambda values, **_: values,
        reduce=lambda values, **_: values,
    )
