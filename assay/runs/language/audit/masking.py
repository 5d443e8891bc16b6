"""I3: what stands beside a response, and what stands where it is over, changes nothing of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.audit.check import Check, relative_gap, verdict_of
from assay.core.estimator import prepare
from assay.core.streams import Stream
from assay.policies.causal.model import CausalPolicy
from assay.policies.causal.pack import Pack
from assay.policies.engines import Request
from assay.runs.language.audit.batching import WHOLE, plain_rows, unclipped
from assay.runs.language.audit.bench import Bench, bench, own_engine
from assay.runs.language.audit.miniature import Miniature, with_policy
from assay.training.language.recipe import estimator_of
from assay.training.language.rollout import Rollout
from assay.training.language.update import Drawing, differentiate

LOUD = 1e3
"""An embedding that nothing else is near."""


def masked(miniature: Miniature) -> Check:
    """Put NaN into other groups, into other responses and under the mask, and see each response's numbers stay."""
    made = bench(miniature, unclipped(miniature.recipe))
    rollout = made.lively()
    findings = [*_neighbours(made, rollout), *_sampled_alone(made), *_under_the_mask(made, rollout)]
    return verdict_of(
        "I3",
        "no padding is read; NaN in another group's prompt or in another response's tokens, an outsized prompt beside "
        "one that is decoded, and NaN under the mask of every column change no bit of what they are not a part of",
        findings,
        exactness=f"{len(rollout.drawn)} responses in one packed row",
        remedy="select with the mask before any arithmetic, and let no token read another response",
    )


def _neighbours(made: Bench, rollout: Rollout) -> list[str]:
    policy, batch = made.state.policy, rollout.batch
    row = batch.part(range(len(batch.responses)))
    read: list[int] = []

    def nothing(ids: Tensor) -> Tensor:
        read.append(ids.numel())
        return torch.zeros_like(ids, dtype=torch.bool)

    with torch.no_grad(), _disturbed(policy, nothing):
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
