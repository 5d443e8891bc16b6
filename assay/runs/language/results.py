"""The results of a language run: its points measured on the same problems, and what may lie behind a gain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assay.evaluation.bounds import bounds_record, certified_bounds
from assay.evaluation.compare import compare_points
from assay.evaluation.format_share import format_share
from assay.evidence.language.history import add_up
from assay.policies.causal.model import CausalPolicy
from assay.runs.language.advice import advice
from assay.runs.language.controls import controlled
from assay.runs.language.measure import SPLITS, measure
from assay.runs.language.samples import Sample
from assay.runs.language.weights import load_adapter
from assay.runs.language.workshop import Workshop, load_model
from assay.training.language.explain import plan_record
from assay.training.language.plan import points
from assay.training.language.state import LanguageState

Record = dict[str, Any]
ALL_POINTS = ("base", "warmup", "rl")
BOUND_BATCH = 64


def compute_results(
    workshop: Workshop,
    state: LanguageState,
    rows: Sequence[Record],
    warmup: Path,
    *,
    digests: Mapping[str, Any],
    keep: Callable[[Sample], None],
    say: Callable[[str], None] = lambda text: None,
) -> Record:
    """Measure every point of a finished run and return what ``results.json`` holds.

    Args:
        workshop: of the run.
        state: as it was at the end.
        rows: the recorded steps.
        warmup: where the policy after the warm-up was saved.
        digests: of the weights.
        keep: receives every evaluated response.
        say: is told what is being measured.
    """
    recipe, evaluation = workshop.recipe, workshop.recipe.evaluation
    train, test = (len(workshop.problems[split]) for split in SPLITS)
    made: dict[str, dict[str, Record]] = {}
    bounds: dict[str, dict[str, Record]] = {}
    for name in points(recipe):
        with at_point(workshop, state, name, warmup) as policy:
            made[name] = {
                split: measure_point(workshop, policy, name, split, samples=evaluation.samples, keep=keep, say=say)
                for split in SPLITS
            }
            if evaluation.bounds:
                say(f"certifying bounds of {name}")
                bounds[name] = {"test": certify(workshop, policy, passes=evaluation.bounds)}
    controls = {}
    for number, name in enumerate(evaluation.controls):
        say(f"training the control {name}")
        occasion = (len(ALL_POINTS) + number) * len(SPLITS)
        record = controlled(workshop, name, occasion=occasion, keep=keep)
        controls[name] = {"test": record, "comparison": compare_points(record, made["rl"]["test"])}
    last = list(made)[-1]
    responses = sum(_responses(record) for splits in made.values() for record in splits.values()) + sum(
        _responses(control["test"]) for control in controls.values()
    )
    return {
        "plan": plan_record(recipe, train=train, test=test),
        "spent": {**add_up(list(rows)), "evaluation_responses": responses},
        "points": made,
        "gains": {split: gains({name: made[name][split] for name in made}) for split in SPLITS},
        "format": format_share(made["base"]["test"], made[last]["test"]) if last != "base" else None,
        "controls": controls,
        "bounds": bounds,
        "signal": signal(rows),
        "digests": dict(digests),
    }


def measure_point(
    workshop: Workshop,
    policy: CausalPolicy,
    name: str,
    split: str,
    *,
    samples: int,
    keep: Callable[[Sample], None] = lambda sample: None,
    say: Callable[[str], None] = lambda text: None,
) -> Record:
    """Return the record of a point on a split, its responses drawn at the addresses that are its own.

    Args:
        workshop: of the run.
        policy: as it was at the point.
        name: of the point.
        split: ``"train"`` or ``"test"``.
        samples: responses a problem.
        keep: receives every response.
        say: is told what is being measured.
    """
    say(f"measuring {name} on {split}")
    occasion = ALL_POINTS.index(name) * len(SPLITS) + SPLITS.index(split)
    greedy = workshop.recipe.evaluation.greedy
    return measure(workshop, policy, name, split, occasion=occasion, samples=samples, greedy=greedy, keep=keep)


@contextmanager
def at_point(workshop: Workshop, state: LanguageState, name: str, warmup: Path) -> Iterator[CausalPolicy]:
    """Give the policy as it was at a point of the run; weights other than the last are loaded again."""
    recipe, policy = workshop.recipe, state.policy
    adapted = policy.model is not policy.causal
    if name == "rl" or (name == "warmup" and not recipe.rl.steps):
        yield policy
    elif name == "base" and adapted:
        yield policy.base()
    else:
        loaded = load_model(recipe, None if name == "base" or adapted else str(warmup))
        if adapted:
            load_adapter(loaded.policy.model, warmup)
        yield loaded.policy


def certify(workshop: Workshop, policy: CausalPolicy, *, passes: int) -> Record:
    """Return certified bounds of the success probability of each test problem, under the sampler of training."""
    rl, codec = workshop.recipe.rl, workshop.codec
    drawing = {"temperature": rl.temperature, "top_k": rl.top_k, "top_p": rl.top_p}

    def ends(prefix: tuple[int, ...]) -> bool:
        stopped = prefix[-1] in codec.stop_tokens or (bool(codec.stop) and codec.ended(prefix))
        return stopped or len(prefix) == rl.max_completion_length

    made = []
    for problem, prompt in zip(workshop.problems["test"], workshop.prompts["test"], strict=True):

        def grade(finished: list[tuple[int, ...]], problem: Any = problem) -> Any:
            responses = [codec.response(tokens, truncated=False) for tokens in finished]
            return workshop.grader([problem] * len(finished), responses)

        def next_logp(prefixes: list[tuple[int, ...]], prompt: Any = prompt) -> Any:
            return policy.next_logp(prompt, prefixes, **drawing)  # type: ignore[arg-type]

        made.append(certified_bounds(next_logp, ends, grade, passes=passes, batch=BOUND_BATCH))
    return bounds_record([problem.number for problem in workshop.problems["test"]], made)


def signal(rows: Sequence[Record]) -> Record:
    """Return what the groups of all steps came to, and what to do where few of them taught anything."""
    history = [row for row in rows if row["phase"] == "rl"]
    groups: Counter[str] = Counter()
    for row in history:
        groups.update(row["groups"])
    total = sum(groups.values())
    return {
        "groups": dict(groups),
        "informative_share": groups["informative"] / total if total else 0.0,
        "effective_groups_per_step": groups["informative"] / len(history) if history else 0.0,
        "advice": advice(history) if history else None,
    }


def gains(made: Mapping[str, Record]) -> dict[str, Record | None]:
    """Return the comparisons of one split; None where a phase was not there."""
    before = made.get("warmup", made["base"])
    return {
        "warmup": compare_points(made["base"], made["warmup"]) if "warmup" in made else None,
        "rl": compare_points(before, made["rl"]) if "rl" in made else None,
        "total": compare_points(made["base"], list(made.values())[-1]) if len(made) > 1 else None,
    }


def _responses(record: Record) -> int:
    """Return how many responses a point's record counts."""
    return sum(row[kind]["of"] for row in record["per_problem"] for kind in ("sampled", "greedy") if row[kind])
