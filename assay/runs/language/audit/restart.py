"""I6 and I11: where ratios are 1 and the KL is 0, and that a run goes on as if it had never stopped."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from assay.audit.check import Check, verdict_of
from assay.core.estimator import Rows, prepare
from assay.core.settings import Settings
from assay.errors import AssayError
from assay.policies.causal.model import CausalPolicy
from assay.runs.language.audit.batching import plain_rows
from assay.runs.language.audit.bench import Bench, bench, noise, own_engine, put
from assay.runs.language.audit.miniature import Miniature
from assay.runs.language.layout import Layout
from assay.runs.language.weights import load_checkpoint, save_checkpoint
from assay.training.language.batch import Batch
from assay.training.language.recipe import estimator_of
from assay.training.language.rollout import Rollout
from assay.training.language.state import adamw, check_reference
from assay.training.language.steps import Record, rl_step
from assay.training.language.update import Drawing, differentiate, score

RESPONSES = ((0,), (1, 0), (1, 2), (2, 0), (2, 2))
"""Tokens of responses of both lengths, ended and cut off."""


def fixed_points(miniature: Miniature) -> Check:
    """Look at ratios and the KL where they are known, before and after a restart."""
    made = bench(miniature)
    rollout = made.lively()
    findings = [f"{name}: a ratio is {ratio!r}" for name, ratio in _ratios(made, rollout).items() if ratio != 1.0]
    with TemporaryDirectory() as place:
        fresh = bench(miniature, moved=False)
        findings += _no_kl(fresh, "at step 0")
        findings += _recorded(fresh)
        again = resumed(bench(miniature, moved=False), Path(place))
        findings += _no_kl(again, "at step 0, after a restart")
    findings += _same_reference(miniature)
    return verdict_of(
        "I6",
        "every ratio is exactly 1 in the first pass, and in the next ones while weights stand still; the KL to the "
        "reference is exactly 0 when RL begins and after a restart, from which the reference comes back bit for bit",
        findings,
        exactness=f"{len(rollout.drawn)} drawn responses; {len(RESPONSES)} responses scored under both policies",
        remedy="score both sides with one forward, and restore the reference from where RL began",
    )


def _ratios(made: Bench, rollout: Rollout) -> dict[str, float]:
    """Return the ratio that is furthest from 1 as the algorithm meets it, pass by pass and part by part."""
    algorithm, settings = estimator_of(made.recipe)
    met: list[float] = []

    def terms(rows: Rows, adv: Tensor, settings: Settings) -> Tensor:
        ratio = (rows.logp - rows.logp_old).detach().exp()[rows.mask]
        met.append(max(ratio.tolist(), key=lambda value: abs(value - 1), default=1.0))
        return algorithm.terms(rows, adv, settings)

    watched = dataclasses.replace(algorithm, terms=terms)
    rows = plain_rows(made, rollout)
    prepared = prepare(
        algorithm, settings, dataclasses.replace(rows, logp=rows.logp.detach(), logits=None, logits_ref=None)
    )
    found: dict[str, float] = {}
    for budget in (made.recipe.policy.token_budget, 7):
        logp_old = None
        for number in (1, 2):
            met.clear()
            done = differentiate(
                made.state.policy,
                rollout.batch,
                prepared,
                watched,
                settings,
                drawing=made.drawing,
                budget=budget,
                reference=made.state.reference,
                logp_old=logp_old,
            )
            logp_old = done.logp
            found[f"pass {number}, token_budget {budget}"] = max(met, key=lambda value: abs(value - 1))
    made.state.policy.model.zero_grad()
    return found


def _log_ratios(made: Bench) -> Tensor:
    """Return log-probabilities of some responses under the policy, less those under the reference."""
    prompts = tuple(made.work.prompts)
    batch = Batch(prompts, RESPONSES * len(prompts), tuple(g for g in range(len(prompts)) for _ in RESPONSES))
    drawing, budget = Drawing(made.drawing.temperature), made.recipe.policy.token_budget
    reference = made.state.reference
    assert reference is not None
    return score(made.state.policy, batch, drawing=drawing, budget=budget) - score(
        reference, batch, drawing=drawing, budget=budget
    )


def _no_kl(made: Bench, when: str) -> list[str]:
    far = float(_log_ratios(made).abs().max())
    return [f"{when}: policy and reference differ by {far:.3g} nats on a token"] if far else []


def _recorded(made: Bench) -> list[str]:
    """Check what the first step records of the KL, where the sampler draws from the whole vocabulary, and that the
    log-ratios of a policy that has moved are not zero as well."""
    findings = []
    rl = made.recipe.rl
    if not rl.top_k and rl.top_p == 1:
        _, record = made.taken()
        if not abs(record["kl"]) <= made.miniature.tolerance:
            findings.append(f"the first step records a KL of {record['kl']:.3g} nats")
    put(made.state.policy, noise(made.state.policy), add=True)
    if not bool(_log_ratios(made).any()):
        findings.append("the reference moves with the policy")
    return findings


def _same_reference(miniature: Miniature) -> list[str]:
    """Move the policy, stop, go on, and compare the reference's log-probabilities."""
    made = bench(miniature)
    before = _log_ratios(made)
    with TemporaryDirectory() as place:
        try:
            again = resumed(made, Path(place))
        except AssayError as error:
            return [f"after a restart: {error}"]
        after = _log_ratios(again)
    far = float((after - before).abs().max())
    return [f"after a restart log-ratios to the reference are {far:.3g} nats off"] if far else []


def resume(miniature: Miniature) -> Check:
    """Take two steps at once, and two with a stop between them, and compare everything bit for bit."""
    whole, halves = _at_a_step(miniature), _at_a_step(miniature)
    start = {name: value.detach().clone() for name, value in whole.state.policy.trained()}
    expected = [_step(whole), _step(whole)]
    made = [_step(halves)]
    with TemporaryDirectory() as place:
        halves = resumed(halves, Path(place))
        made.append(_step(halves))
    findings = [
        f"step {at + 1}: {_unlike(a, b)}" for at, (a, b) in enumerate(zip(made, expected, strict=True)) if a != b
    ]
    ours, theirs = _contents(halves), _contents(whole)
    findings += [f"{name} differs" for name in sorted(ours.keys() | theirs.keys()) if not _equal(ours, theirs, name)]
    if all(torch.equal(value, start[name]) for name, value in whole.state.policy.trained()):
        findings.append("no weight moved in two steps, so that nothing is shown")
    return verdict_of(
        "I11",
        "two steps, and one step, a checkpoint on disk, a model loaded anew and another step: weights, moments, "
        "counters and records are equal bit for bit",
        findings,
        exactness=f"{len(ours)} tensors and counters",
        remedy="keep everything that the next step depends on in the checkpoint",
    )


def _at_a_step(miniature: Miniature) -> Bench:
    """Return a bench before the first of two steps of its own optimizer, one at least with a gradient."""
    made = bench(miniature)
    made.lively()
    state = made.state
    state.optimizer, state.step, state.version = adamw(state.policy, made.recipe.rl), made.step, 0
    return made


def _step(made: Bench) -> Record:
    return rl_step(made.state, made.work)


def _unlike(made: Record, expected: Record) -> str:
    name = next(name for name in expected if made.get(name) != expected[name])
    return f"{name} is {made.get(name)!r}, and {expected[name]!r} uninterrupted"


def _contents(made: Bench) -> dict[str, object]:
    state = made.state
    found: dict[str, object] = {"step": state.step, "version": state.version}
    for name, value in state.policy.trained():
        found[name] = value.detach()
        found |= {f"{kind} of {name}": held for kind, held in state.optimizer.state.get(value, {}).items()}
    return found


def _equal(ours: dict[str, object], theirs: dict[str, object], name: str) -> bool:
    a, b = ours.get(name), theirs.get(name)
    return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b


def resumed(made: Bench, place: Path) -> Bench:
    """Save a bench's state as a run does, and return another one that went on from it, the model loaded anew."""
    layout = Layout(place)
    save_checkpoint(layout, made.state)
    fresh = bench(made.miniature, made.recipe, moved=False)
    reference: CausalPolicy | None = fresh.state.reference
    digest = fresh.state.digests["base"]
    state = load_checkpoint(layout, fresh.state.policy, made.recipe, base=digest)
    assert state is not None
    state.reference = reference
    check_reference(state, f"rl {state.step}")
    work = dataclasses.replace(fresh.work, engine=own_engine(state.policy, fresh.codec, made.recipe))
    return dataclasses.replace(fresh, state=state, work=work, step=made.step)
