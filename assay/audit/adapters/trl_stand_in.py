"""What TRL's two methods read of their trainer: its settings, one process, and a prescribed rollout in place of
generation, reward functions and model."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.audit.check import SubjectError

END, PADDING = -1, -2
"""Stand-in ids; TRL asks of a response's last token only whether it is one of them."""
_LOGS = ("prompt", "completion", "advantages", "images")


@dataclass(eq=False)
class Table:
    """Stands in for a model: the log-probability and the entropy of every row's tokens, ``[B, T]``."""

    logp: Float[Tensor, "B T"]
    entropy: Float[Tensor, "B T"]
    training: bool = True
    is_gradient_checkpointing: bool = False


@dataclass(frozen=True)
class Library:
    """TRL's trainer, its class and its configuration; ``name`` is ``"GRPO"`` or ``"RLOO"``."""

    name: str
    trainer: Any
    config: Any


@dataclass(frozen=True)
class Rollout:
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

    policy: Table
    old: Table
    reference: Table
    sampler: Float[Tensor, "B T"]
    reward: Float[Tensor, " B"]
    mask: Float[Tensor, "B T"]
    truncated: Bool[Tensor, " B"]
    group_size: int


def laid_out(given: Mapping[str, Tensor], entropy: Float[Tensor, "B T"]) -> Rollout:
    """Lay a batch out as TRL does: group after group, zero where there is no token.

    Args:
        given: what a loss is called with, by name.
        entropy: of the policy before each token.

    Raises:
        SubjectError: the groups are of several sizes.
    """
    order = given["group"].argsort(stable=True)
    sizes = torch.bincount(given["group"])
    sizes = sizes[sizes > 0]
    if bool((sizes != sizes[0]).any()):
        raise SubjectError(f"TRL's groups are all of one size, these have {sizes.tolist()} responses")
    mask = given["mask"][order]

    def rows(values: Tensor) -> Tensor:
        return values[order].masked_fill(mask == 0, 0.0)

    def table(name: str) -> Table:
        return Table(rows(given[name]), rows(entropy))

    tables = table("logp"), table("logp_old"), table("logp_ref")
    truncated, group_size = given["truncated"][order], int(sizes[0])
    return Rollout(*tables, rows(given["logp_sampler"]), given["reward"][order], mask, truncated, group_size)


def stand_in(library: Library, rollout: Rollout) -> SimpleNamespace:
    """Return what TRL's two methods read of their trainer: its settings under the names that its constructor gives
    them, one process, and the rollout in place of generation, reward functions and model."""
    config, generated = library.config, _generated(library, rollout)

    def score(model: Table, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, *_: Any, **__: Any) -> Any:
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
        "_generate": lambda prompts: generated,
        "_calculate_rewards": lambda *_: rollout.reward[:, None],
        "_get_per_token_logps_and_entropies": score,
    }
    made = SimpleNamespace(**parts)
    if library.name == "GRPO":
        for name in ("get_off_policy_mask", "get_gamma_weights"):
            setattr(made, name, getattr(library.trainer, name))
        made.get_high_entropy_mask = functools.partial(library.trainer.get_high_entropy_mask, made)
    return made


def _generated(library: Library, rollout: Rollout) -> tuple[Any, ...]:
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
