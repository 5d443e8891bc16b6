"""The state of a language run: everything that its next step depends on, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from assay.core.digest import model_digest, weights_digest
from assay.errors import CheckpointError, UpdateError
from assay.policies.causal.model import CausalPolicy
from assay.training.language.options import RLOptions, WarmupOptions

FORMAT = "assay-language-checkpoint/1"
_MOMENTS = ("exp_avg", "exp_avg_sq")

Phase = Literal["warmup", "rl", "done"]


@dataclass
class LanguageState:
    """Where a run stands. Random numbers are addressed by step, so no generator state is part of it.

    Attributes:
        phase: what the next step belongs to.
        step: steps completed in this phase.
        policy: the policy that is trained.
        optimizer: AdamW over what is trained of it, a fresh one in each phase.
        reference: what the KL is measured from; None before RL and where no KL is asked for.
        version: optimizer steps taken in all; names the weights to whatever samples from them.
        tokens: of prompts and responses that RL has read so far.
        digests: ``"base"``, ``"rl 0"``, ``"rl 10"``, ..., ``"end"`` to the digest of the base model, then of the
            reference at each of those points.
    """

    phase: Phase
    step: int
    policy: CausalPolicy
    optimizer: torch.optim.Optimizer
    reference: CausalPolicy | None = None
    version: int = 0
    tokens: int = 0
    digests: dict[str, str] = field(default_factory=dict)


def adamw(policy: CausalPolicy, options: WarmupOptions | RLOptions) -> torch.optim.Optimizer:
    """Return a fresh AdamW over everything that is trained."""
    parameters = [value for _, value in policy.trained()]
    return torch.optim.AdamW(parameters, lr=options.learning_rate, weight_decay=options.weight_decay, fused=True)


def begin(policy: CausalPolicy, warmup: WarmupOptions, *, base: str) -> LanguageState:
    """Return the state before the first step, from a model whose weights had the digest ``base`` when it was loaded."""
    return LanguageState("warmup", 0, policy, adamw(policy, warmup), digests={"base": base})


def begin_rl(state: LanguageState, rl: RLOptions, *, with_reference: bool) -> None:
    """Start RL from the weights as they are, with a fresh optimizer and, where it is needed, a frozen reference.

    With adapters the reference is the base model without them, whatever a warm-up taught them.
    """
    state.phase, state.step = "rl", 0
    state.optimizer = adamw(state.policy, rl)
    if with_reference:
        state.reference = state.policy.base()
        state.digests["rl 0"] = reference_digest(state.reference)


def reference_digest(reference: CausalPolicy) -> str:
    """Return the digest of a reference's weights: of a whole model, or of what lies under the adapters."""
    adapted = reference.model is not reference.causal
    return weights_digest(reference.frozen()) if adapted else model_digest(reference.model)


def check_reference(state: LanguageState, point: str | None = None) -> None:
    """Check that the reference, if there is one, is what it was when RL began, and record its digest at a point.

    Raises:
        UpdateError: the reference has changed.
    """
    if state.reference is None:
        return
    digest, first = reference_digest(state.reference), state.digests["rl 0"]
    if digest != first:
        raise UpdateError(
            f"rl step {state.step}: the frozen reference changed (digest {digest[:12]}, was {first[:12]}); "
            "KL is no longer measured from where RL started"
        )
    if point is not None:
        state.digests[point] = digest


def to_tensors(state: LanguageState) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Return a state as weights, optimizer tensors and a plain record; the reference is not part of it.

    The reference is the base model or the policy after warm-up, which a run keeps elsewhere.
    """
    weights = {name: value.detach() for name, value in state.policy.trained()}
    moments: dict[str, Tensor] = {}
    for name, parameter in state.policy.trained():
        held = state.optimizer.state.get(parameter, {})
        moments |= {f"{kind}.{name}": held[kind] for kind in _MOMENTS if kind in held}
    taken = [int(held["step"]) for held in state.optimizer.state.values() if "step" in held]
    record = {
        "format": FORMAT,
        "phase": state.phase,
        "step": state.step,
        "version": state.version,
        "tokens": state.tokens,
        "optimizer_steps": max(taken, default=0),
        "digests": dict(state.digests),
    }
    return weights, moments, record


def from_tensors(
    policy: CausalPolicy,
    weights: dict[str, Tensor],
    moments: dict[str, Tensor],
    record: dict[str, Any],
    *,
    base: str,
    warmup: WarmupOptions,
    rl: RLOptions,
    place: str,
) -> LanguageState:
    """Rebuild a state on a policy just loaded, without its reference.

    Args:
        policy: the base model, which must be the one that the run began with.
        weights: what was trained of it.
        moments: of the optimizer.
        record: the rest.
        base: digest of the model as it was loaded now.
        warmup: the run's settings.
        rl: the run's settings.
        place: the checkpoint's name, for messages.

    Raises:
        CheckpointError: names, shapes or types do not fit the policy, a value is not finite, or the base model is
            another one.
    """
    if record.get("format") != FORMAT or record.get("phase") not in ("warmup", "rl", "done"):
        raise CheckpointError(f"{place}: not an {FORMAT} checkpoint")
    if base != record["digests"].get("base"):
        was = str(record["digests"].get("base"))[:12]
        raise CheckpointError(f"{place}: the run began with base model {was}, and the one loaded is {base[:12]}")
    options = warmup if record["phase"] == "warmup" else rl
    state = LanguageState(
        record["phase"],
        record["step"],
        policy,
        adamw(policy, options),
        version=record["version"],
        tokens=record["tokens"],
        digests=dict(record["digests"]),
    )
    trained = dict(policy.trained())
    _check(place, "weights", weights, trained)
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(weights[name])
    if record["optimizer_steps"]:
        for kind in _MOMENTS:
            _check(
                place,
                kind,
                {n.removeprefix(f"{kind}."): v for n, v in moments.items() if n.startswith(f"{kind}.")},
                trained,
            )
        for name, parameter in trained.items():
            held = {kind: moments[f"{kind}.{name}"].to(parameter.device, copy=True) for kind in _MOMENTS}
            taken = torch.tensor(float(record["optimizer_steps"]), device=parameter.device)
            state.optimizer.state[parameter] = {"step": taken, **held}
    return state


def _check(place: str, what: str, given: dict[str, Tensor], trained: dict[str, torch.nn.Parameter]) -> None:
    if odd := sorted(set(given) ^ set(trained)):
        raise CheckpointError(f"{place}: {what} of {odd[0]} missing or unexpected")
    for name, parameter in trained.items():
        if given[name].shape != parameter.shape or given[name].dtype != parameter.dtype:
            form = f"{parameter.dtype} of shape {tuple(parameter.shape)}"
            raise CheckpointError(f"{place}: {what} of {name} should be {form}")
        if not bool(given[name].isfinite().all()):
            raise CheckpointError(f"{place}: {what} of {name} hold a value that is not finite")
