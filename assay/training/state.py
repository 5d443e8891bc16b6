"""The state of a run in progress: everything that the next step depends on, and nothing else."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Literal

import torch

from assay.core.digest import weights_digest
from assay.errors import UpdateError
from assay.policies.transformer import TinyTransformer
from assay.tasks.chain import DIGITS, PROMPT_LENGTH, RESPONSE_LENGTH, VOCABULARY
from assay.training.config import Recipe, RLConfig, WarmupConfig

Phase = Literal["warmup", "rl", "done"]


def initial_policy(recipe: Recipe, *, dtype: torch.dtype = torch.float32) -> TinyTransformer:
    """Return the policy at random initialisation, as the recipe's seed makes it."""
    return TinyTransformer(
        vocabulary=len(VOCABULARY),
        responses=DIGITS,
        context=PROMPT_LENGTH + RESPONSE_LENGTH - 1,
        width=recipe.policy.width,
        heads=recipe.policy.heads,
        feedforward=recipe.policy.feedforward,
        seed=recipe.seed,
        dtype=dtype,
    )


@dataclass
class State:
    """Where a run stands. Random numbers are addressed by step, so no generator state is part of it.

    Attributes:
        phase: what the next step belongs to.
        step: steps completed in this phase.
        policy: the weights being trained.
        optimizer: AdamW over them, a fresh one in each phase.
        reference: the frozen snapshot after warm-up; None before.
        reference_digests: ``"rl 0"``, ``"rl 10"``, ... to the reference's digest at the start of RL and at
            every scheduled checkpoint.
        last_gradient: norm of each tensor's gradient at the last update that was applied in RL.
    """

    phase: Phase
    step: int
    policy: TinyTransformer
    optimizer: torch.optim.Optimizer
    reference: TinyTransformer | None = None
    reference_digests: dict[str, str] = field(default_factory=dict)
    last_gradient: dict[str, float] = field(default_factory=dict)

    def rows(self, recipe: Recipe) -> int:
        """Return the steps completed in both phases: the number of records emitted so far."""
        return self.step + (recipe.warmup.steps if self.phase != "warmup" else 0)


def adamw(policy: TinyTransformer, settings: WarmupConfig | RLConfig) -> torch.optim.Optimizer:
    """Return a fresh AdamW over every parameter."""
    return torch.optim.AdamW(
        policy.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
    )


def start(recipe: Recipe) -> State:
    """Return the state before the first step."""
    policy = initial_policy(recipe)
    return State("warmup", 0, policy, adamw(policy, recipe.warmup))


def begin_rl(state: State, recipe: Recipe) -> None:
    """Freeze a copy of the warmed-up weights as the reference and start RL with a fresh optimizer.

    The same snapshot is the "before RL" point of the report; there is no choice among candidates.
    """
    reference = copy.deepcopy(state.policy).requires_grad_(False)
    for parameter in reference.parameters():
        parameter.grad = None
    state.reference = reference
    state.phase, state.step = "rl", 0
    state.optimizer = adamw(state.policy, recipe.rl)
    state.reference_digests["rl 0"] = weights_digest(reference.named_parameters())


def check_reference(state: State) -> str:
    """Return the reference's digest, which must be what it was when RL began.

    Raises:
        UpdateError: the reference has changed, for example because it was synchronised to the policy.
    """
    assert state.reference is not None
    digest = weights_digest(state.reference.named_parameters())
    first = state.reference_digests["rl 0"]
    if digest != first:
        raise UpdateError(
            f"rl step {state.step}: the frozen reference changed (digest {digest[:12]}, was {first[:12]}); "
            "KL is no longer measured from where RL started"
        )
    return digest
