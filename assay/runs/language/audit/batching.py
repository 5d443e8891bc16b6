"""I2 and I3: how a batch is cut, and what stands beside a response, change nothing about its gradient."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.audit.check import Check, relative_gap, verdict_of
from assay.core.estimator import Rows, loss, prepare
from assay.core.streams import Stream
from assay.policies.causal.model import CausalPolicy
from assay.policies.causal.pack import Pack
from assay.policies.engines import Request
from assay.runs.language.audit.bench import (
    NO_CLIPPING,
    Bench,
    Gradient,
    bench,
    gradient_gap,
    noise,
    own_engine,
    put,
    worst,
)
from assay.runs.language.audit.miniature import Miniature, with_policy, with_rl
from assay.runs.language.audit.plain import Plain
from assay.training.language.recipe import LanguageRecipe, estimator_of
from assay.training.language.rollout import Rollout
from assay.training.language.update import Drawing, differentiate, score

WHOLE = 10**6
"""A budget of tokens that holds any batch here."""
SMALL = 0.05
LOUD = 1e3


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
        f"gradients of {passes} over {rows} responses in one part, in {', '.join(map(str, parts))} parts, in another order "
        "of problems, and through Transformers with one padded row a response",
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


def masked(miniature: Miniature) -> Check:
    """Put NaN where other groups, other responses and the mask are, and see each response's numbers stay as they were."""
    made = bench(miniature, unclipped(miniature.recipe))
    rollout = made.lively()
    findings = [*_neighbours(made, rollout), *_sampled_alone(made), *_under_the_mask(made, rollout)]
    return verdict_of(
        "I3",
        "no padding is read; NaN in another group's prompt or in another response's tokens, an outsized prompt beside one "
        "that is decoded, and NaN under the mask of every column change no bit of what they are not a part of",
        findings,
        exactness=f"{len(rollout.drawn)} responses in one packed row",
        remedy="select with the mask before any arithmetic, and let no token read another response",
    )


def _neighbours(made: Bench, rollout: Rollout) -> list[str]:
    policy, batch = made.state.policy, rollout.batch
    row = batch.part(range(len(batch.responses)))
    read: list[int] = []
    with (
        torch.no_grad(),
        _disturbed(policy, lambda ids: read.append(ids.numel()) or torch.zeros_like(ids, dtype=torch.bool)),
    ):
        clean = _logp(policy, row, made.drawing)
    findings = []
    needed = sum(map(len, batch.prompts)) + sum(len(response) - 1 for response in batch.responses)
    if read != [needed]:
        findings.append(f"{sum(read)} tokens are read, and prompts and responses have {needed}")
    of = torch.arange(len(batch.responses)).repeat_interleave(row.lengths)
    place, start = torch.arange(len(row.tokens)), row.groups[1].start
    for number, where in enumerate((place < start, place >= start)):
        made_of, own = _poisoned(policy, row, made.drawing, where), torch.tensor(batch.group)[of] != number
        if not torch.equal(made_of[own], clean[own]) or bool(made_of[~own].isfinite().any()):
            findings.append(f"NaN all over group {number}: the other's log-probabilities change, or its own do not")
    longer = [at for at, response in enumerate(batch.responses) if len(response) > 1 and batch.group[at] == 0]
    if longer:
        sibling = _poisoned(policy, row, made.drawing, place == row.groups[0].place[longer[0], 0])
        if not torch.equal(sibling[of != longer[0]], clean[of != longer[0]]):
            findings.append(f"NaN in response {longer[0]}: log-probabilities of other responses change")
    return findings


def _sampled_alone(made: Bench) -> list[str]:
    """Say whether an outsized prompt changes what is drawn beside it."""
    policy, work = made.state.policy, made.work
    engine = own_engine(policy, made.codec, with_policy(made.recipe, token_budget=WHOLE, decode_rows=64))
    pairs = zip(work.prompts, work.problems, strict=True)
    asked = [Request(prompt, problem.number, tuple(range(4))) for prompt, problem in pairs]
    calls: list[int] = []

    def second(ids: Tensor) -> Tensor:
        calls.append(ids.numel())  # the first reads both prompts, later ones a token a response
        return torch.arange(ids.shape[-1])[None] >= (len(work.prompts[0]) if len(calls) == 1 else ids.numel())

    quiet = engine.generate(asked, work.decoding, seed=0, stream=Stream.ROLLOUT, step=0)
    with _disturbed(policy, second, LOUD):
        loud = engine.generate(asked, work.decoding, seed=0, stream=Stream.ROLLOUT, step=0)
    apart = [one.tokens for one in quiet[0]] != [one.tokens for one in loud[0]]
    before, after = (
        torch.tensor([value for one in row[0] for value in one.logp], dtype=torch.float64) for row in (quiet, loud)
    )
    if apart or quiet[1] == loud[1] or not relative_gap(after, before) <= made.miniature.tolerance:
        return ["responses to one prompt change with the prompt that is decoded beside it"]
    return []


def _under_the_mask(made: Bench, rollout: Rollout) -> list[str]:
    """Return whether what stands where a response is over reaches advantages or gradients."""
    policy, batch = made.state.policy, rollout.batch
    algorithm, settings = estimator_of(made.recipe)
    rows = plain_rows(made, rollout)
    rows = dataclasses.replace(rows, logp=rows.logp.detach(), logits=None, logits_ref=None)
    gradients = []
    for filler in (0.0, float("nan")):
        filled = {
            name: getattr(rows, name).masked_fill(~batch.mask, filler)
            for name in ("logp", "logp_old", "logp_ref", "logp_sampler")
        }
        prepared = prepare(algorithm, settings, dataclasses.replace(rows, **filled))
        policy.model.zero_grad()
        differentiate(
            policy,
            batch,
            prepared,
            algorithm,
            settings,
            drawing=made.drawing,
            budget=WHOLE,
            reference=made.state.reference,
            logp_old=filled["logp_old"],
        )
        gradients.append({n: v.grad.clone() for n, v in policy.trained() if v.grad is not None})
    same = all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])
    return [] if same else ["NaN where responses are over reaches the gradient"]


@torch.no_grad()
def _poisoned(policy: CausalPolicy, row: Pack, drawing: Drawing, where: Bool[Tensor, " S"]) -> Float[Tensor, " M"]:
    with _disturbed(policy, lambda ids: where[None]):
        return _logp(policy, row, drawing)


def _logp(policy: CausalPolicy, row: Pack, drawing: Drawing) -> Float[Tensor, " M"]:
    return policy.token_logp(row, temperature=drawing.temperature).logp


@contextmanager
def _disturbed(
    policy: CausalPolicy, where: Callable[[Int[Tensor, "1 S"]], Tensor], value: float = float("nan")
) -> Iterator[None]:
    """Write a value over the embeddings of some tokens as they are read."""

    def hook(module: Any, given: tuple[Tensor, ...], made: Tensor) -> Tensor:
        return made.masked_fill(where(given[0])[..., None], value)

    handle = policy.causal.get_input_embeddings().register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
