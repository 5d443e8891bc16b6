"""I8 and I12: what draws the responses says rightly how likely they were, and draws from its own numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from assay.audit.check import Check, relative_gap, verdict_of
from assay.core.streams import Stream, uniforms
from assay.policies.engines import Drawn, Request
from assay.runs.language.audit.bench import Bench, bench, own_engine, prompted
from assay.runs.language.audit.miniature import Miniature
from assay.training.language.batch import Batch
from assay.training.language.update import score

DRAWS = 48
"""Responses to each problem."""
STEPS = 3


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
        "log-probabilities of the engine's draws and of the scorer against Transformers' eager forward, at "
        f"temperature {drawing.temperature:g}, top-k {drawing.top_k or 'off'}, top-p {drawing.top_p:g}; nothing is "
        "drawn that these leave out",
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
                            f"problem {own}, step {step}, sample {sample}, position {at}: the number {uniform:.6f} "
                            f"spells a token that is not {token}"
                        ]
    return []
