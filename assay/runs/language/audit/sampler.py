"""I7, I8 and I12: what draws the responses is what is trained, says so rightly, and draws from its own numbers."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from assay.audit.check import Check, relative_gap, verdict_of
from assay.core.streams import Stream, uniforms
from assay.errors import UpdateError
from assay.policies.causal.model import CausalPolicy
from assay.policies.engines import Decoding, Drawn, Request
from assay.runs.language.audit.bench import FAR, Bench, bench, noise, own_engine, prompted, put
from assay.runs.language.audit.miniature import Miniature
from assay.training.language.batch import Batch
from assay.training.language.recipe import sampler_gap
from assay.training.language.rollout import roll_out
from assay.training.language.steps import rl_step
from assay.training.language.update import score

DRAWS = 48
"""Responses to each problem."""
STEPS = 3
ALIKE = 12
"""Roundings of a float64 sum that a uniform may be away from the edge between two tokens, as a power of ten."""


def sampler_and_scorer(miniature: Miniature) -> Check:
    """Compare what the engine says of its draws, what the scorer says of every response, and Transformers' forward."""
    made = bench(miniature)
    findings, error = [], 0.0
    for number, (place, prompt) in enumerate(zip(prompted(made), made.work.prompts, strict=True)):
        problem = place.problem
        there = problem.drawn
        plain = problem.tree.token_logp(problem.draws)
        known = {
            tuple(problem.tree.responses[row, : int(problem.tree.lengths[row])].tolist()): plain[row] for row in there
        }
        said = _draw(made, number, range(DRAWS))
        outside = [one.tokens for one in said if one.tokens not in known]
        if outside:
            findings.append(
                f"{problem.name}: {list(outside[0])} was drawn, and temperature, top-k and top-p leave it out"
            )
            continue
        batch = Batch((prompt,), tuple(known), (0,) * len(known))
        scored = score(made.state.policy, batch, drawing=made.drawing, budget=made.recipe.policy.token_budget)
        everything = torch.stack(list(known.values()))[:, : scored.shape[1]]
        engine = torch.tensor([value for one in said for value in one.logp], dtype=torch.float64)
        same = torch.cat([known[one.tokens][: len(one.tokens)] for one in said])
        for what, a, b in (("the scorer", scored, everything), ("the engine", engine, same)):
            gap = relative_gap(a, b)
            error = max(error, gap)
            if not gap <= miniature.tolerance:
                at = int((a - b).abs().flatten().argmax())
                findings.append(
                    f"{problem.name}: {what} says {float(a.flatten()[at]):.6g} nats of a token, Transformers' forward "
                    f"{float(b.flatten()[at]):.6g}"
                )
    drawing = made.drawing
    return verdict_of(
        "I8",
        f"log-probabilities of the engine's draws and of the scorer against Transformers' eager forward, at temperature "
        f"{drawing.temperature:g}, top-k {drawing.top_k or 'off'}, top-p {drawing.top_p:g}; nothing is drawn that these leave out",
        findings,
        error=error,
        tolerance=miniature.tolerance,
        why=miniature.why,
        exactness=f"{DRAWS} draws and every response that can be drawn, on two problems",
        remedy="draw and score from the same logits, after the same temperature and cut",
    )


def _draw(made: Bench, number: int, samples: Iterable[int], *, step: int = 0) -> list[Drawn]:
    engine = own_engine(made.state.policy, made.codec, made.recipe)
    request = Request(made.work.prompts[number], made.work.problems[number].number, tuple(samples))
    seed = made.recipe.seed
    return engine.generate([request], made.work.decoding, seed=seed, stream=Stream.ROLLOUT, step=step)[0]


def seeds(miniature: Miniature) -> Check:
    """Look at the numbers behind each response, and whether it is the one that they spell."""
    made = bench(miniature)
    rl, seed = miniature.original.rl, miniature.original.seed
    problems = [number for number in range(min(rl.problems_per_step, 64)) for _ in range(rl.num_generations)]
    samples = list(range(rl.num_generations)) * min(rl.problems_per_step, 64)
    length = min(rl.max_completion_length, 64)
    tables = [
        uniforms(seed, stream, length, step=step, problem=problems, sample=samples)
        for step in range(STEPS)
        for stream in (Stream.ROLLOUT, Stream.EVALUATION)
    ]
    numbers = torch.cat([table.flatten() for table in tables])
    findings = []
    if len(numbers.unique()) < len(numbers):
        findings.append(
            f"{len(numbers) - len(numbers.unique())} of {len(numbers)} random numbers are not the only ones"
        )
    steps = [[_draw(made, place, range(DRAWS), step=step) for step in range(STEPS)] for place in range(2)]
    again = _draw(made, 0, range(DRAWS))
    if again != steps[0][0]:
        findings.append("the same step drawn twice gives other responses")
    if any(
        part == steps[place][other]
        for place in range(2)
        for part, other in ((steps[place][0], 1), (steps[place][1], 2))
    ):
        findings.append("two steps give the same responses")
    alone = [_draw(made, 0, [sample])[0].tokens for sample in range(DRAWS)]
    if alone != [one.tokens for one in steps[0][0]]:
        findings.append("a response depends on which others are drawn beside it")
    findings += _not_spelled(made, steps)
    return verdict_of(
        "I12",
        f"no two of {len(numbers):,} random numbers of {STEPS} steps and their evaluations are the same; responses are "
        "those that the numbers of their own seed, step, problem and sample spell, drawn alone or together, and again",
        findings,
        exactness=f"seed {seed}, {DRAWS} responses a problem and step",
        remedy="address each response's numbers by seed, step, problem and sample",
    )


def _not_spelled(made: Bench, steps: Sequence[Sequence[Sequence[Drawn]]]) -> list[str]:
    """Name a response that is not the inverse of the cumulative distribution at its own numbers."""
    for place, problem in enumerate(one.problem for one in prompted(made)):
        chance = problem.draws.softmax(-1)
        prefixes = {tuple(problem.tree.prefixes[node]): row for row, node in enumerate(problem.tree.inner.tolist())}
        for step, responses in enumerate(steps[place]):
            own = made.work.problems[place].number
            numbers = uniforms(
                made.recipe.seed,
                Stream.ROLLOUT,
                made.recipe.rl.max_completion_length,
                step=step,
                problem=[own] * len(responses),
                sample=list(range(len(responses))),
            )
            for sample, one in enumerate(responses):
                for at, token in enumerate(one.tokens):
                    ends = chance[prefixes[one.tokens[:at]]].cumsum(0)
                    uniform = float(numbers[sample, at])
                    low = float(ends[token - 1]) if token else 0.0
                    slack = made.miniature.tolerance
                    if not low - slack <= uniform <= float(ends[token]) + slack:
                        return [
                            f"problem {own}, step {step}, sample {sample}, position {at}: the number {uniform:.6f} spells "
                            f"a token that is not {token}"
                        ]
    return []


class _Stuck:
    """The package's engine, with a version or weights that do not follow.

    Args:
        made: the bench it draws for.
        policy: what it draws from.
        follows: whether it takes note of versions.
    """

    def __init__(self, made: Bench, policy: CausalPolicy, *, follows: bool) -> None:
        self._engine, self._follows = own_engine(policy, made.codec, made.recipe), follows

    @property
    def version(self) -> int:
        """Return what it last took note of."""
        return self._engine.version

    def load(self, named_weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take note of the first version, or of all."""
        if self._follows or self._engine.version < 0:
            self._engine.load(named_weights, version)

    def generate(
        self, requests: Sequence[Request], decoding: Decoding, *, seed: int, stream: Stream, step: int
    ) -> list[list[Drawn]]:
        """Draw."""
        return self._engine.generate(requests, decoding, seed=seed, stream=stream, step=step)


def freshness(miniature: Miniature) -> Check:
    """Take steps with the recipe's optimizer and see the sampler follow; then with samplers that do not."""
    made = bench(miniature)
    findings = [*_follows(made), *_refuses_version(miniature), *_measures_old_weights(miniature)]
    return verdict_of(
        "I7",
        "after a step the engine draws from the new weights and says their version; an engine of another version is "
        f"refused, and weights that stayed behind are measured and refused beyond {sampler_gap(miniature.recipe):g} nats "
        "unless the algorithm corrects for them",
        findings,
        remedy="hand over every trained tensor before each draw, and compare versions",
    )


def _follows(made: Bench) -> list[str]:
    state, engine = made.state, made.work.engine
    findings = []
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
    engine = _Stuck(made, made.state.policy, follows=False)
    engine.load((), 0)
    made.state.version = 7
    made.work = dataclasses.replace(made.work, engine=engine)
    for what, attempt in (
        ("a step", lambda: rl_step(made.state, made.work)),
        ("a rollout", lambda: _rolled(made, engine)),
    ):
        try:
            attempt()
        except UpdateError:
            continue
        return [f"{what} goes through with an engine that holds version 0 of weights that are at 7"]
    return []


def _rolled(made: Bench, engine: _Stuck) -> object:
    work = made.work
    given = (engine, work.codec, work.grader, work.problems, work.prompts, work.decoding)
    return roll_out(*given, size=2, seed=0, step=0, version=made.state.version)


def _measures_old_weights(miniature: Miniature) -> list[str]:
    """Draw from weights that stayed behind under the right version: refused, or the gap is in the record."""
    made = bench(miniature)
    made.lively()
    behind = CausalPolicy(copy.deepcopy(made.state.policy.model))
    put(made.state.policy, noise(made.state.policy, seed=9, size=FAR), add=True)
    made.work = dataclasses.replace(made.work, engine=_Stuck(made, behind, follows=True))
    try:
        _, record = made.taken()
    except UpdateError:
        return []
    measured = record.get("sampling/sampling_logp_difference/max", 0.0) if record["stepped"] else 1.0
    return (
        [] if measured > 1e-3 else [f"weights that stayed behind are drawn from, and the gap reads {measured:.3g} nats"]
    )
