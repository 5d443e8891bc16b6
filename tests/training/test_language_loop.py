"""The loop from warm-up to the end: what it calls when, and that an interruption anywhere leaves no trace."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from policies.tiny_policies import adapted, tiny_causal
from tiny_work import tiny_recipe, workplace

from assay.core.digest import model_digest
from assay.errors import Interrupted, UpdateError
from assay.policies.causal.model import CausalPolicy
from assay.training.language.loop import Hooks, run
from assay.training.language.recipe import LanguageRecipe
from assay.training.language.state import LanguageState, begin, from_tensors, to_tensors

WARMUP, STEPS = 2, 4


def recipe_of(**sections: Any) -> LanguageRecipe:
    rl = {
        "steps": STEPS, "problems_per_step": 2, "num_generations": 4, "max_completion_length": 4,
        "learning_rate": 3e-3, "lr_scheduler_type": "linear", **sections.pop("rl", {}),
    }  # fmt: skip
    warmup = {"steps": WARMUP, "problems_per_step": 2, "learning_rate": 1e-3, **sections.pop("warmup", {})}
    return tiny_recipe(rl=rl, warmup=warmup, **{"save_steps": 3, **sections})


def fresh(lora: bool = False) -> CausalPolicy:
    return CausalPolicy(adapted(tiny_causal()) if lora else tiny_causal())


def started(recipe: LanguageRecipe, *, lora: bool = False) -> LanguageState:
    policy = fresh(lora)
    return begin(policy, recipe.warmup, base="base")


@dataclass
class Log:
    """Everything that a loop said and saved."""

    records: list[dict[str, Any]] = field(default_factory=list)
    saves: list[tuple[str, int]] = field(default_factory=list)
    kept: Any = None
    warmed: dict[str, torch.Tensor] = field(default_factory=dict)
    stop_after: int = 10**9
    monitored: list[int] = field(default_factory=list)

    def hooks(self) -> Hooks:
        """Return hooks that write this log."""
        return Hooks(
            emit=lambda record, seconds: self.records.append(record),
            save=self._save,
            warmed_up=lambda state: self.warmed.update(copy.deepcopy(state.policy.model.state_dict())),
            monitor=self._monitor,
            stopping=lambda: len(self.records) >= self.stop_after,
        )

    def _save(self, state: LanguageState) -> None:
        self.saves.append((state.phase, state.step))
        weights, moments, record = to_tensors(state)
        self.kept = copy.deepcopy((weights, moments, record))

    def _monitor(self, state: LanguageState) -> dict[str, Any]:
        self.monitored.append(state.step)
        return {"test/greedy": 0.5}


def resumed(log: Log, recipe: LanguageRecipe, *, lora: bool = False) -> LanguageState:
    """Rebuild a state from what was saved, as a process would that knows nothing else."""
    weights, moments, record = log.kept
    policy = fresh(lora)
    given: dict[str, Any] = {"base": "base", "warmup": recipe.warmup, "rl": recipe.rl, "place": "checkpoint"}
    state = from_tensors(policy, weights, moments, record, **given)
    if state.phase == "rl":
        before = fresh(lora)
        before.model.load_state_dict(log.warmed or before.model.state_dict())
        state.reference = policy.base() if lora else before.base()
    return state


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_an_interruption_after_any_step_leaves_no_trace(lora):
    recipe, whole = recipe_of(), Log()
    ended = started(recipe, lora=lora)
    run(ended, workplace(ended.policy, recipe), whole.hooks())
    for after in range(1, WARMUP + STEPS + 1):
        log = Log(stop_after=after)
        state = started(recipe, lora=lora)
        with pytest.raises(Interrupted, match="stopped after"):
            run(state, workplace(state.policy, recipe), log.hooks())
        log.stop_after = 10**9
        state = resumed(log, recipe, lora=lora)
        run(state, workplace(state.policy, recipe), log.hooks())
        assert log.records == whole.records
        for name, value in ended.policy.model.state_dict().items():
            assert torch.equal(state.policy.model.state_dict()[name], value), name
        for found, expected in zip(to_tensors(state)[:2], to_tensors(ended)[:2], strict=True):
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert (state.version, state.tokens) == (ended.version, ended.tokens)


def test_a_run_saves_where_its_recipe_says_and_at_every_turn():
    recipe, log = recipe_of(save_steps=1, evaluation={"every": 2}), Log()
    state = started(recipe)
    run(state, workplace(state.policy, recipe), log.hooks())
    assert log.saves == [("warmup", 1), ("rl", 0), ("rl", 1), ("rl", 2), ("rl", 3), ("done", STEPS)]
    assert [(record["phase"], record["step"]) for record in log.records] == [
        ("warmup", 1), ("warmup", 2), ("rl", 1), ("rl", 2), ("rl", 3), ("rl", 4)
    ]  # fmt: skip
    assert log.monitored == [2, 4]
    assert ["test/greedy" in record for record in log.records] == [False, False, False, True, False, True]
    rates = [record["learning_rate"] for record in log.records]
    assert rates == pytest.approx([1e-3] * 2 + [3e-3 * (1 - step / STEPS) for step in range(STEPS)])


def test_a_finished_run_does_nothing_more():
    recipe, log = recipe_of(), Log()
    state = started(recipe)
    run(state, workplace(state.policy, recipe), log.hooks())
    again = Log()
    run(state, workplace(state.policy, recipe), again.hooks())
    assert not again.records and not again.saves and state.phase == "done"


def test_without_a_warmup_rl_begins_at_the_model_as_loaded():
    recipe, log = recipe_of(warmup={"steps": 0}), Log()
    state = started(recipe)
    base = model_digest(state.policy.model)
    run(state, workplace(state.policy, recipe), log.hooks())
    assert not log.warmed
    assert set(state.digests) == {"base", "rl 0", "rl 3", "end"}
    assert {state.digests[point] for point in ("rl 0", "rl 3", "end")} == {base}
    assert model_digest(state.policy.model) != base


def test_the_reference_is_the_policy_after_warmup_and_stays_it():
    recipe, log = recipe_of(), Log()
    state = started(recipe)
    run(state, workplace(state.policy, recipe), log.hooks())
    assert state.reference is not None
    for name, value in state.reference.model.state_dict().items():
        assert torch.equal(value, log.warmed[name])
    assert log.records[WARMUP]["kl"] == pytest.approx(0.0, abs=1e-12)
    assert abs(log.records[-1]["kl"]) > 1e-6


def test_with_adapters_the_reference_is_the_base_whatever_a_warmup_taught():
    recipe, log = recipe_of(), Log()
    state = started(recipe, lora=True)
    run(state, workplace(state.policy, recipe), log.hooks())
    assert state.reference is not None and state.reference.model is state.policy.model
    base = {name: value for name, value in fresh(True).frozen()}
    assert base and all(torch.equal(base[name], value) for name, value in state.reference.frozen())
    assert abs(log.records[WARMUP]["kl"]) > 1e-6  # the adapters were no zero, and have learnt


def test_no_reference_is_held_where_no_kl_is_asked_for():
    recipe, log = recipe_of(rl={"beta": 0.0}), Log()
    state = started(recipe)
    run(state, workplace(state.policy, recipe), log.hooks())
    assert state.reference is None and set(state.digests) == {"base"}


@pytest.mark.parametrize("save_steps", [1, 100])
def test_a_reference_that_moves_stops_the_run(save_steps):
    """At the next save, or at the end."""
    recipe, log = recipe_of(save_steps=save_steps), Log()
    state = started(recipe)

    def spoil(rollout: Any) -> None:
        assert state.reference is not None
        if state.step == 1:
            with torch.no_grad():
                next(state.reference.model.parameters()).add_(1e-3)

    with pytest.raises(UpdateError, match="the frozen reference changed"):
        run(state, workplace(state.policy, recipe, on_rollout=spoil), log.hooks())
    assert log.saves[-1] == (("rl", 1) if save_steps == 1 else ("rl", 0))


def test_a_tied_reference_would_be_seen():
    """A reference that shares its tensors with the policy moves with it."""
    recipe, log = recipe_of(), Log()
    state = started(recipe)

    def tie(rollout: Any) -> None:
        state.reference = state.policy

    with pytest.raises(UpdateError, match="the frozen reference changed"):
        run(state, workplace(state.policy, recipe, on_rollout=tie), log.hooks())


def test_the_same_recipe_gives_the_same_run_and_another_seed_another():
    logs = []
    for seed in (29, 29, 30):
        recipe, log = recipe_of(seed=seed), Log()
        state = started(recipe)
        run(state, workplace(state.policy, recipe), log.hooks())
        logs.append(log.records)
    assert logs[0] == logs[1] != logs[2]
    assert logs[0][:WARMUP] == logs[2][:WARMUP]  # which draws nothing


def test_decode_rows_and_token_budget_change_a_run_by_rounding_alone():
    weights = []
    for budget in (16, 8192):
        recipe = recipe_of(policy={"token_budget": budget, "dtype": "float64"})
        state = started(recipe)
        run(state, workplace(state.policy, recipe), Log().hooks())
        weights.append(torch.cat([value.detach().flatten() for _, value in state.policy.trained()]))
    # Adam divides by the size of a gradient, so that rounding in a small one counts for more
    assert torch.allclose(weights[0], weights[1], rtol=0, atol=1e-6)
    assert not torch.equal(weights[0], weights[1])
