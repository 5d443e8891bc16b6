"""The loop: warm-up, then on-policy RL, one guarded update at a time.

It emits one record a step through a callable and hands its state to another one to be saved. It knows no files.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from assay.core.losses import likelihood_terms, weighted_loss
from assay.core.weights import sequence_mean
from assay.errors import Interrupted
from assay.policies.sampling import score
from assay.tasks.chain import Problem, encode_answers, encode_prompts
from assay.training.config import Recipe
from assay.training.estimate import Estimator, exact_estimator, sampled_estimator
from assay.training.state import State, begin_rl, check_reference
from assay.training.step import apply_update

Record = dict[str, Any]
Monitor = Callable[[nn.Module, nn.Module], Record]


@dataclass(frozen=True)
class Hooks:
    """What the loop calls while it runs.

    Attributes:
        emit: receives each step's record and the seconds the step took.
        save: receives the state every ``save_steps`` steps, at the start of RL, when stopping, and at the end.
        monitor: exact measures of policy and reference, added to every ``evaluation.every``-th RL record.
        stopping: asked after each step; True saves and stops.
    """

    emit: Callable[[Record, float], None]
    save: Callable[[State], None]
    monitor: Monitor
    stopping: Callable[[], bool] = lambda: False


def run(state: State, recipe: Recipe, problems: tuple[Problem, ...], hooks: Hooks) -> None:
    """Carry ``state`` from where it stands to the end of the plan, in place.

    Args:
        state: from :func:`assay.training.state.start` or a checkpoint.
        recipe: the run's settings.
        problems: the training problems.
        hooks: what to call on the way.

    Raises:
        UpdateError: a guard stopped the run; the last saved state is before the faulty step.
        Interrupted: ``hooks.stopping`` asked for it; the state was saved.
    """
    advance: dict[str, Callable[[], Record]] = {
        "warmup": _warmup_step(state, recipe, problems),
        "rl": _rl_step(state, recipe, problems, hooks.monitor),
    }
    length = {"warmup": recipe.warmup.steps, "rl": recipe.rl.steps}
    while state.phase != "done":
        if state.step == length[state.phase]:
            _next_phase(state, recipe)
            hooks.save(state)
            continue
        began = time.perf_counter()
        record = advance[state.phase]()
        hooks.emit(record, time.perf_counter() - began)
        if state.step % recipe.save_steps == 0 and state.step < length[state.phase]:
            if state.phase == "rl":
                state.reference_digests[f"rl {state.step}"] = check_reference(state)
            hooks.save(state)
        if hooks.stopping():
            hooks.save(state)
            raise Interrupted(f"stopped after {state.phase} step {state.step} of {length[state.phase]}")


def _next_phase(state: State, recipe: Recipe) -> None:
    if state.phase == "warmup":
        begin_rl(state, recipe)
    else:
        state.reference_digests["end"] = check_reference(state)
        state.phase = "done"


def _warmup_step(state: State, recipe: Recipe, problems: tuple[Problem, ...]) -> Callable[[], Record]:
    """Return a function that takes one supervised step over all problems.

    The objective is the mean over problems of the negative log-likelihood of the full response: the sum over
    its tokens, not their mean.
    """
    prompts, answers = encode_prompts(problems), encode_answers(problems)
    weights = sequence_mean(len(problems), total=len(problems))

    def advance() -> Record:
        logp = score(state.policy, prompts, answers).sum(1)
        loss = weighted_loss(likelihood_terms(logp), weights)
        place = f"warmup step {state.step + 1}"
        update = apply_update(
            state.policy, state.optimizer, loss, max_grad_norm=recipe.warmup.max_grad_norm, place=place
        )
        state.step += 1
        return {
            "phase": "warmup",
            "step": state.step,
            "negative_log_likelihood": float(loss.detach()),
            "grad_norm": update.grad_norm,
            "clipped_grad_norm": update.clipped_grad_norm,
        }

    return advance


def estimator_of(recipe: Recipe, problems: tuple[Problem, ...]) -> Estimator:
    """Return the estimator that the recipe names, over these training problems."""
    prompts, rl = encode_prompts(problems), recipe.rl
    if rl.estimator == "exact":
        return exact_estimator(problems, prompts, beta=rl.beta)
    return sampled_estimator(problems, prompts, size=rl.num_generations, beta=rl.beta, seed=recipe.seed)


def _rl_step(state: State, recipe: Recipe, problems: tuple[Problem, ...], monitor: Monitor) -> Callable[[], Record]:
    """Return a function that takes one on-policy step: estimate, one backward, throw the batch away.

    Where every advantage is exactly zero there is nothing to learn: the gradients are cleared and the optimizer
    does not step, since Adam's momentum would otherwise move the weights.
    """
    estimate = estimator_of(recipe, problems)

    def advance() -> Record:
        assert state.reference is not None
        batch = recipe.batch(state.step)
        made = estimate(state.policy, state.reference, state.step, batch)
        signal = made.zero_signal_groups < made.groups
        grad_norm = clipped = 0.0
        if signal:
            place = f"rl step {state.step + 1}"
            update = apply_update(
                state.policy, state.optimizer, made.loss, max_grad_norm=recipe.rl.max_grad_norm, place=place
            )
            grad_norm, clipped, state.last_gradient = update.grad_norm, update.clipped_grad_norm, update.tensor_norms
        else:
            state.optimizer.zero_grad(set_to_none=True)
        state.step += 1
        record: Record = {
            "phase": "rl",
            "step": state.step,
            "problems": batch,
            "strict_reward": made.strict_reward,
            "log_ratio": made.log_ratio,
            "return": made.shaped_return,
            "grad_norm": grad_norm,
            "clipped_grad_norm": clipped,
            "zero_signal_groups": made.zero_signal_groups,
            "stepped": signal,
            "sampler_gap": made.sampler_gap,
            "trajectories": made.trajectories,
        }
        if state.step % recipe.evaluation.every == 0 or state.step == recipe.rl.steps:
            record["exact"] = monitor(state.policy, state.reference)
        return record

    return advance
