"""I7: what draws the responses has the weights that are trained, or is found out."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

from assay.audit.check import Check, verdict_of
from assay.core.streams import Stream
from assay.errors import UpdateError
from assay.policies.causal.model import CausalPolicy
from assay.policies.engines import Request
from assay.runs.language.audit.bench import Bench, bench, noise, own_engine, prompted, put
from assay.runs.language.audit.miniature import Miniature
from assay.runs.language.audit.stand_ins import Stuck
from assay.training.language.recipe import sampler_gap
from assay.training.language.rollout import roll_out
from assay.training.language.steps import rl_step


def freshness(miniature: Miniature) -> Check:
    """Take steps with the recipe's optimizer and see the sampler follow; then with samplers that do not."""
    made = bench(miniature)
    findings = [*_follows(made), *_refuses_version(miniature), *_measures_old_weights(miniature)]
    return verdict_of(
        "I7",
        "after a step the engine draws from the new weights and says their version; an engine of another version is "
        "refused, and weights that stayed behind are measured, and refused beyond "
        f"{sampler_gap(miniature.recipe):g} nats unless the algorithm corrects for them",
        findings,
        remedy="hand over every trained tensor before each draw, and compare versions",
    )


def _follows(made: Bench) -> list[str]:
    state, engine = made.state, made.work.engine
    findings: list[str] = []
    for step in range(2):
        state.step = step
        before = state.version
        try:
            rl_step(state, made.work)
        except UpdateError as error:
            return [*findings, f"after the weights moved: {error}"]
        if engine.version != before:
            findings.append(f"step {step + 1}: the engine says version {engine.version}, the weights were {before}")
        put(state.policy, noise(state.policy, seed=step + 3), add=True)
        plain = prompted(made)[0].problem
        known = {
            tuple(plain.tree.responses[row, : int(plain.tree.lengths[row])].tolist()): plain.sampler_logp[row]
            for row in plain.drawn
        }
        said = engine.generate(
            [Request(made.work.prompts[0], 0, tuple(range(8)))],
            made.work.decoding,
            seed=1,
            stream=Stream.ROLLOUT,
            step=step,
        )[0]
        gap = max(abs(sum(one.logp) - float(known[one.tokens])) if one.tokens in known else 1e9 for one in said)
        if not gap <= made.miniature.tolerance * 10:
            findings.append(f"after the weights moved, the engine draws with log-probabilities {gap:.3g} nats off")
    return findings


def _refuses_version(miniature: Miniature) -> list[str]:
    made = bench(miniature)
    engine = Stuck(own_engine(made.state.policy, made.codec, made.recipe), follows=False)
    engine.load((), 0)
    made.state.version = 7
    made.work = dataclasses.replace(made.work, engine=engine)
    attempts: dict[str, Callable[[], object]] = {
        "a step": lambda: rl_step(made.state, made.work),
        "a rollout": lambda: _rolled(made, engine),
    }
    for what, attempt in attempts.items():
        try:
            attempt()
        except UpdateError:
            continue
        return [f"{what} goes through with an engine that holds version 0 of weights that are at 7"]
    return []


def _rolled(made: Bench, engine: Stuck) -> object:
    work = made.work
    given = (engine, work.codec, work.grader, work.problems, work.prompts, work.decoding)
    return roll_out(*given, size=2, seed=0, step=0, version=made.state.version)


def _measures_old_weights(miniature: Miniature) -> list[str]:
    """Draw from weights that stayed behind under the right version: refused, or the gap is in the record."""
    made = bench(miniature)
    made.lively()
    behind = CausalPolicy(copy.deepcopy(made.state.policy.model))
    put(made.state.policy, noise(made.state.policy, seed=9), add=True)
    made.work = dataclasses.replace(made.work, engine=Stuck(own_engine(behind, made.codec, made.recipe), follows=True))
    try:
        _, record = made.taken()
    except UpdateError:
        return []
    measured = record.get("sampling/sampling_logp_difference/max", 0.0) if record["stepped"] else 1.0
    return (
        [] if measured > 1e-3 else [f"weights that stayed behind are drawn from, and the gap reads {measured:.3g} nats"]
    )
