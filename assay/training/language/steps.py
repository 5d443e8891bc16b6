"""One step of each phase: supervised on right answers, or on-policy on graded responses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.estimator import Algorithm, Prepared, Rows, log_ratio_to_reference, prepare
from assay.core.gap import Gap, gap
from assay.core.settings import PLACEMENTS, Settings
from assay.errors import UpdateError
from assay.policies.causal.tokens import Codec
from assay.policies.engines import Decoding, Engine
from assay.training.language.algorithm import corrects_sampler
from assay.training.language.batch import Batch
from assay.training.language.recipe import LanguageRecipe, estimator_of, sampler_gap
from assay.training.language.rollout import Rollout, group_kinds, length_record, outcome_counts, roll_out
from assay.training.language.state import LanguageState
from assay.training.language.update import Drawing, Pass, differentiate, score
from assay.training.language.warmup import differentiate_likelihood
from assay.training.step import Update, apply_gradients
from assay.types import Grader, TextProblem

Record = dict[str, Any]


@dataclass(frozen=True)
class Workplace:
    """What the steps of a run work with, besides its state.

    Attributes:
        recipe: the run's settings.
        problems: the training problems.
        prompts: their tokens.
        codec: of the model.
        engine: what draws responses.
        grader: what scores them.
        on_rollout: told of every batch of graded responses, before it is trained on.
    """

    recipe: LanguageRecipe
    problems: Sequence[TextProblem]
    prompts: Sequence[tuple[int, ...]]
    codec: Codec
    engine: Engine
    grader: Grader
    on_rollout: Callable[[Rollout], None] = lambda rollout: None

    @property
    def drawing(self) -> Drawing:
        """Return how responses are drawn."""
        rl = self.recipe.rl
        return Drawing(rl.temperature, rl.top_k, rl.top_p)

    @property
    def decoding(self) -> Decoding:
        """Return the same for an engine, with where a response ends."""
        rl = self.recipe.rl
        return Decoding(rl.temperature, rl.top_k, rl.top_p, rl.max_completion_length, self.codec.stop_tokens)


def warmup_step(state: LanguageState, work: Workplace) -> Record:
    """Take one supervised step on the right answers of the next problems."""
    options = work.recipe.warmup
    numbers = work.recipe.warmup_batch(state.step, len(work.problems))
    answers = []
    for number in numbers:
        problem = work.problems[number]
        assert problem.answer is not None  # a recipe with a warm-up is refused without answers
        answers.append(work.codec.answer(problem.prompt, problem.answer))
    batch = Batch(tuple(work.prompts[number] for number in numbers), tuple(answers), tuple(range(len(numbers))))
    state.optimizer.zero_grad(set_to_none=True)
    loss = differentiate_likelihood(state.policy, batch, budget=work.recipe.policy.token_budget)
    place = f"warmup step {state.step + 1}"
    update = apply_gradients(state.policy.trained(), state.optimizer, max_grad_norm=options.max_grad_norm, place=place)
    state.step, state.version = state.step + 1, state.version + 1
    return {
        "phase": "warmup",
        "step": state.step,
        "problems": [work.problems[number].number for number in numbers],
        "negative_log_likelihood": loss,
        "learning_rate": options.learning_rate,
        **_norms(update),
    }


def rl_step(state: LanguageState, work: Workplace) -> Record:
    """Take one step of RL: draw, grade, differentiate, check, update; the batch is then thrown away.

    Where nothing can have a gradient the optimizer does not step, since Adam's momentum would move the weights.

    Raises:
        UpdateError: a stale sampler, a sampler that is too far from the policy, a gradient that is missing or not
            finite, or memory that ran out; the weights are those of the step before.
    """
    rl = work.recipe.rl
    algorithm, settings = estimator_of(work.recipe)
    rollout = drawn(state, work, step=state.step)
    work.on_rollout(rollout)
    rows = _rows(state, work, rollout)
    prepared = prepare(algorithm, settings, rows)
    rate = scheduled(rl.lr_scheduler_type, rl.learning_rate, step=state.step, steps=rl.steps)
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    passes, update, distance = _updated(state, work, rollout, prepared)
    state.step += 1
    state.tokens += _tokens_read(rollout.batch)
    return {
        "phase": "rl",
        "step": state.step,
        "problems": [problem.number for problem in rollout.problems],
        **_reward_record(rows, rollout),
        **length_record(rollout.drawn),
        "outcomes": outcome_counts(rollout.outcomes),
        "stepped": update is not None,
        "learning_rate": rate,
        "num_tokens": state.tokens,
        **_norms(update),
        **_pass_record(prepared, algorithm, settings, passes),
        **({} if distance is None else distance.record()),
    }


def drawn(state: LanguageState, work: Workplace, *, step: int) -> Rollout:
    """Draw the responses of one step of RL from the policy as it is, and grade them."""
    chosen = work.recipe.batch(step, len(work.problems))
    work.engine.load(state.policy.trained(), state.version)
    return roll_out(
        work.engine,
        work.codec,
        work.grader,
        [work.problems[number] for number in chosen],
        [work.prompts[number] for number in chosen],
        work.decoding,
        size=work.recipe.rl.num_generations,
        seed=work.recipe.seed,
        step=step,
        version=state.version,
    )


def _updated(
    state: LanguageState, work: Workplace, rollout: Rollout, prepared: Prepared
) -> tuple[list[Pass], Update | None, Gap | None]:
    """Take a batch's optimizer steps, each checked before it is applied.

    Returns:
        What each pass over the batch found, the last update, and the gap between sampler and policy before the first;
        nothing where no row can have a gradient.
    """
    recipe, rl = work.recipe, work.recipe.rl
    algorithm, settings = estimator_of(recipe)
    place = f"rl step {state.step + 1}"
    passes: list[Pass] = []
    update, distance = None, None
    for _ in range(rl.num_iterations):
        state.optimizer.zero_grad(set_to_none=True)
        made = differentiate(
            state.policy,
            rollout.batch,
            prepared,
            algorithm,
            settings,
            drawing=work.drawing,
            budget=recipe.policy.token_budget,
            reference=state.reference,
            logp_old=passes[0].logp if passes else None,
        )
        if not bool(made.scored.any()):
            break
        if distance is None:
            distance = gap(made.logp, prepared.rows.logp_sampler, made.scored)
            _check_gap(distance, sampler_gap(recipe), algorithm, place)
        passes.append(made)
        update = apply_gradients(state.policy.trained(), state.optimizer, max_grad_norm=rl.max_grad_norm, place=place)
        state.version += 1
    state.optimizer.zero_grad(set_to_none=True)
    return passes, update, distance


def scheduled(kind: str, rate: float, *, step: int, steps: int) -> float:
    """Return the learning rate of a step, counted from 0, of so many.

    ``constant`` keeps it; ``linear`` and ``cosine`` go down to 0, which the step after the last would have.
    """
    done = step / steps
    return rate * {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1.0 + math.cos(math.pi * done))}[kind]


def _rows(state: LanguageState, work: Workplace, rollout: Rollout) -> Rows:
    """Return a rollout as the estimators see it, with the log-probabilities that advantages are made of.

    Those of our own engine are the policy's. Another engine's are not, so its responses are scored first.
    """
    batch, budget, device = rollout.batch, work.recipe.policy.token_budget, state.policy.device
    dtype = state.policy.head().weight.dtype
    logp_sampler = rollout.logp_sampler(dtype).to(device)
    own = work.recipe.policy.engine == "own"
    logp = logp_sampler if own else score(state.policy, batch, drawing=work.drawing, budget=budget)
    logp_ref = logp
    if state.reference is not None:  # over the whole vocabulary, where the sampler may have cut it
        logp_ref = score(state.reference, batch, drawing=Drawing(work.recipe.rl.temperature), budget=budget)
    reward = rollout.reward(dtype, without_truncated=work.recipe.rl.mask_truncated_completions)
    return Rows(
        logp=logp,
        logp_old=logp,
        logp_ref=logp_ref,
        logp_sampler=logp_sampler,
        mask=batch.mask.to(device),
        reward=reward.to(device),
        group=torch.tensor(batch.group, device=device),
        tokens=batch.padded(batch.responses, torch.long).to(device),
    )


def _check_gap(found: Gap, limit: float, algorithm: Algorithm, place: str) -> None:
    if found.unscored:
        raise UpdateError(
            f"{place}: the sampler gave no log-probability for {found.unscored} tokens; nothing was updated"
        )
    if not found.difference_max <= limit and not corrects_sampler(algorithm):
        raise UpdateError(
            f"{place}: sampler and trainer differ by {found.difference_max:.3g} nats on a token (limit {limit:g}), so "
            "the responses were not drawn from the policy that is updated; nothing was updated. Where the sampler is "
            "meant to differ, use rl.algorithm = 'tis', 'mis' or 'sequence_is', which weigh responses by the "
            "difference, or set rl.max_sampler_gap"
        )


def _reward_record(rows: Rows, rollout: Rollout) -> Record:
    """Return what TRL records of rewards, over the responses that have one; 0 where none has."""
    scored = ~rows.reward.isnan()
    reward = rows.reward[scored]
    kinds = group_kinds(rows.reward, rollout.batch.group, rollout.outcomes)
    constant = len(rollout.problems) - kinds["informative"]
    record = {
        "reward": float(reward.mean()) if len(reward) else 0.0,
        "reward_std": float(reward.std()) if len(reward) > 1 else 0.0,
        "frac_reward_zero_std": constant / len(rollout.problems),
        "groups": kinds,
    }
    log_ratio = log_ratio_to_reference(rows).sum(1)
    return {**record, "kl": float(log_ratio.mean())}


def _pass_record(prepared: Prepared, algorithm: Algorithm, settings: Settings, passes: list[Pass]) -> Record:
    """Return what the passes over a batch say: the first one's loss and entropy, the last one's clipped ratios."""
    if not passes:
        return {"loss": 0.0}
    first, last = passes[0], passes[-1]
    record: Record = {"loss": first.loss, "entropy": float(first.entropy[first.scored].mean())}
    if len(passes) > 1 and "clip_low" in algorithm.live:
        record |= clip_ratios(last.logp - first.logp, prepared.adv, prepared.rows.mask, settings)
    return record


def clip_ratios(
    log_ratio: Float[Tensor, "B T"], adv: Float[Tensor, "B T"], mask: Tensor, settings: Settings
) -> dict[str, float]:
    """Return the shares of tokens whose ratio is beyond the clip on the side that cuts their gradient."""
    ratio = log_ratio.exp()
    low = (mask & (ratio < 1 - settings.clip_low) & (adv < 0)).sum() / mask.sum()
    high = (mask & (ratio > 1 + settings.clip_high) & (adv > 0)).sum() / mask.sum()
    return {
        "clip_ratio/low_mean": float(low),
        "clip_ratio/high_mean": float(high),
        "clip_ratio/region_mean": float(low + high),
    }


def needs_reference(settings: Settings) -> bool:
    """Return whether a KL to a reference is a part of what is ascended."""
    return settings.kl in PLACEMENTS


def _tokens_read(batch: Batch) -> int:
    """Return the tokens of prompts, one for each response as TRL counts them, and responses."""
    return sum(len(batch.prompts[group]) + len(row) for group, row in zip(batch.group, batch.responses, strict=True))


def _norms(update: Update | None) -> dict[str, float]:
    if update is None:
        return {"grad_norm": 0.0, "clipped_grad_norm": 0.0}
    return {"grad_norm": update.grad_norm, "clipped_grad_norm": update.clipped_grad_norm}
