"""I2: how a batch is cut changes nothing about its gradient."""

from __future__ import annotations

import dataclasses

import torch
from jaxtyping import Float
from torch import Tensor

from assay.audit.check import Check, verdict_of
from assay.core.estimator import Rows, loss, prepare
from assay.runs.language.audit.bench import (
    NO_CLIPPING,
    Bench,
    bench,
    gradient_gap,
    noise,
    put,
    worst,
)
from assay.runs.language.audit.miniature import Miniature, with_policy, with_rl
from assay.runs.language.audit.plain import Plain
from assay.runs.language.audit.stand_ins import Gradient
from assay.training.language.recipe import LanguageRecipe, estimator_of
from assay.training.language.rollout import Rollout

WHOLE = 10**6
"""A budget of tokens that holds any batch here."""
SMALL = 0.05


def partition(miniature: Miniature) -> Check:
    """Take one step's gradients under several budgets, row counts and orders, and once with no packing at all."""
    recipe = unclipped(miniature.recipe)
    whole = bench(miniature, _cut(recipe, WHOLE, 64))
    moves = noise(whole.state.policy, seed=2, size=SMALL)
    rollout = whole.lively()
    expected, rows = whole.taken(moves=moves)[0], len(rollout.drawn)
    cuts: dict[str, list[Gradient]] = {"through Transformers, unpacked": _plain_passes(whole, rollout, moves)}
    parts = []
    for budget, decoded in ((7, 3), (3, 1), (12, 64)):
        other = dataclasses.replace(bench(miniature, _cut(recipe, budget, decoded)), step=whole.step)
        parts.append(len(rollout.batch.parts(range(rows), budget)))
        cuts[f"token_budget {budget}, decode_rows {decoded}"] = other.taken(moves=moves)[0]
    turned = dataclasses.replace(bench(miniature, _cut(recipe, 7, 64), reverse=True), step=whole.step)
    cuts["problems in the other order"] = turned.taken(moves=moves)[0]
    findings, error = [], 0.0
    for name, made in cuts.items():
        gaps = [gradient_gap(a, b) for a, b in zip(made, expected, strict=False)]
        error = max([error, *gaps, *([float("inf")] if len(made) != len(expected) else [])])
        findings += [
            f"{name}, pass {number + 1}: {worst(made[number], expected[number])}"
            for number, gap in enumerate(gaps)
            if not gap <= miniature.tolerance
        ]
        if len(made) != len(expected):
            findings.append(f"{name}: {len(made)} passes, and {len(expected)} in one part")
    passes = f"{len(expected)} passes" if len(expected) > 1 else "one pass"
    return verdict_of(
        "I2",
        f"gradients of {passes} over {rows} responses in one part, in {', '.join(map(str, parts))} parts, in another "
        "order of problems, and through Transformers with one padded row a response",
        findings,
        error=error,
        tolerance=miniature.tolerance,
        why=miniature.why,
        exactness=f"groups of {recipe.rl.num_generations}, drawn by the package's engine",
        remedy="divide by the counts of the whole batch in every part of it",
    )


def unclipped(recipe: LanguageRecipe) -> LanguageRecipe:
    """Return a recipe whose gradients reach the optimizer as they are."""
    return with_rl(recipe, max_grad_norm=NO_CLIPPING)


def _cut(recipe: LanguageRecipe, budget: int, rows: int) -> LanguageRecipe:
    return with_policy(recipe, token_budget=budget, decode_rows=rows)


def _plain_passes(made: Bench, rollout: Rollout, moves: Gradient) -> list[Gradient]:
    """Return the gradients of every pass over a batch from the core's loss on Transformers' own logits."""
    policy, algorithm_settings = made.state.policy, estimator_of(made.recipe)
    algorithm, settings = algorithm_settings
    start = {name: value.detach().clone() for name, value in policy.trained()}
    named, passes, logp_old = dict(policy.trained()), [], None
    first = plain_rows(made, rollout)
    prepared = prepare(algorithm, settings, dataclasses.replace(first, logp=first.logp.detach()))
    for _ in range(made.recipe.rl.num_iterations):
        rows = plain_rows(made, rollout)
        logp_old = rows.logp.detach() if logp_old is None else logp_old
        columns = dataclasses.replace(rows, logp_old=logp_old, mask=prepared.rows.mask)
        value = loss(algorithm, settings, dataclasses.replace(prepared, rows=columns))
        if not value.requires_grad or not bool(prepared.rows.mask.any()):
            break
        parts = torch.autograd.grad(value, list(named.values()), allow_unused=True, materialize_grads=True)
        passes.append(dict(zip(named, parts, strict=True)))
        put(policy, moves, add=True)
    put(policy, start)
    return passes


def plain_rows(made: Bench, rollout: Rollout) -> Rows:
    """Return a batch as the estimators see it, every number of it from Transformers' own forward."""
    batch = rollout.batch
    tokens = batch.padded(batch.responses, torch.long)
    group = torch.tensor(batch.group)

    def logits_of(policy: Plain) -> Float[Tensor, "B T V"]:
        return torch.cat([policy.after(prompt, tokens[group == g]) for g, prompt in enumerate(batch.prompts)])

    def logp_of(logits: Float[Tensor, "B T V"]) -> Float[Tensor, "B T"]:
        return logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0].masked_fill(~batch.mask, 0.0)

    logits = logits_of(made.plain)
    with torch.no_grad():
        logits_ref = logits_of(made.origin)
    logp = logp_of(logits)
    reward = rollout.reward(logits.dtype, without_truncated=made.recipe.rl.mask_truncated_completions)
    before = logp.detach()
    return Rows(logp, before, logp_of(logits_ref), before, batch.mask, reward, group, tokens, logits, logits_ref)
