"""A state as tensors and back, and every checkpoint that does not fit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from policies.tiny_policies import adapted, tiny_causal
from tiny_work import rl_state, tiny_recipe, workplace

from assay.core.digest import model_digest
from assay.errors import CheckpointError
from assay.policies.causal.model import CausalPolicy
from assay.training.language.state import FORMAT, LanguageState, from_tensors, reference_digest, to_tensors
from assay.training.language.steps import rl_step

RECIPE = tiny_recipe(
    rl={"steps": 3, "problems_per_step": 2, "num_generations": 3, "max_completion_length": 4, "learning_rate": 1e-2}
)


def moved(policy: CausalPolicy) -> LanguageState:
    state = rl_state(policy, RECIPE)
    rl_step(state, workplace(policy, RECIPE))
    return state


def back(tensors: Any, policy: CausalPolicy | None = None, *, base: str = "base") -> LanguageState:
    given: dict[str, Any] = {"warmup": RECIPE.warmup, "rl": RECIPE.rl, "place": "checkpoint"}
    return from_tensors(policy or CausalPolicy(tiny_causal()), *tensors, base=base, **given)


@pytest.mark.parametrize("lora", [False, True])
def test_a_state_comes_back_bit_for_bit(lora):
    build = (lambda: adapted(tiny_causal())) if lora else tiny_causal
    state = moved(CausalPolicy(build()))
    weights, moments, record = to_tensors(state)
    assert set(weights) == {name for name, _ in state.policy.trained()}
    assert set(moments) == {f"{kind}.{name}" for name in weights for kind in ("exp_avg", "exp_avg_sq")}
    assert record == {
        "format": FORMAT, "phase": "rl", "step": 1, "version": 1, "tokens": state.tokens, "optimizer_steps": 1,
        "digests": state.digests,
    }  # fmt: skip
    found = back(copy.deepcopy((weights, moments, record)), CausalPolicy(build()))
    for one, other in zip(to_tensors(found), (weights, moments, record), strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[k], other[k]) if torch.is_tensor(other[k]) else one[k] == other[k] for k in other)


def test_tied_weights_are_kept_once():
    weights, _, _ = to_tensors(moved(CausalPolicy(tiny_causal(tied=True))))
    assert "transformer.wte.weight" in weights and "lm_head.weight" not in weights
    untied, _, _ = to_tensors(moved(CausalPolicy(tiny_causal(tied=False))))
    assert {"transformer.wte.weight", "lm_head.weight"} <= untied.keys()


def test_a_state_before_any_step_has_no_moments():
    weights, moments, record = to_tensors(rl_state(CausalPolicy(tiny_causal()), RECIPE))
    assert not moments and record["optimizer_steps"] == 0
    assert not back((weights, moments, record)).optimizer.state


def spoilt(tensors: Any, how: str) -> Any:
    weights, moments, record = copy.deepcopy(tensors)
    name = next(iter(weights))
    match how:
        case "format":
            record["format"] = "other/1"
        case "phase":
            record["phase"] = "later"
        case "missing":
            del weights[name]
        case "extra":
            weights["lm_head.odd"] = torch.zeros(1)
        case "shape":
            weights[name] = weights[name][:-1]
        case "type":
            weights[name] = weights[name].float()
        case "nan":
            weights[name][0] = float("nan")
        case "moment":
            del moments[f"exp_avg_sq.{name}"]
        case "inf":
            moments[f"exp_avg.{name}"][0] = float("inf")
    return weights, moments, record


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("format", "not an assay-language-checkpoint/1"),
        ("phase", "not an assay-language-checkpoint/1"),
        ("missing", "weights of transformer.wte.weight missing or unexpected"),
        ("extra", "weights of lm_head.odd missing or unexpected"),
        ("shape", "weights of transformer.wte.weight should be torch.float64 of shape"),
        ("type", "should be torch.float64"),
        ("nan", "weights of transformer.wte.weight hold a value that is not finite"),
        ("moment", "exp_avg_sq of transformer.wte.weight missing or unexpected"),
        ("inf", "exp_avg of transformer.wte.weight hold a value that is not finite"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(how, says):
    tensors = to_tensors(moved(CausalPolicy(tiny_causal())))
    with pytest.raises(CheckpointError, match=says):
        back(spoilt(tensors, how))


def test_a_checkpoint_of_another_base_model_is_refused():
    with pytest.raises(CheckpointError, match="the run began with base model base, and the one loaded is other"):
        back(to_tensors(moved(CausalPolicy(tiny_causal()))), base="other")


def test_what_is_saved_is_what_is_trained():
    """The adapters of one state and not its base; all of another."""
    state = moved(CausalPolicy(adapted(tiny_causal())))
    weights, _, _ = to_tensors(state)
    assert weights and all("lora_" in name for name in weights)
    fresh = dict(CausalPolicy(adapted(tiny_causal())).trained())
    assert any(not torch.equal(value, fresh[name]) for name, value in weights.items())


def test_the_digest_of_a_reference_is_of_its_weights_alone():
    """That of a copy is the model's own; that under adapters does not see the adapters."""
    policy = CausalPolicy(tiny_causal())
    assert reference_digest(policy.base()) == model_digest(policy.model)
    adapters = CausalPolicy(adapted(tiny_causal()))
    before = reference_digest(adapters.base())
    with torch.no_grad():
        next(value for _, value in adapters.trained()).add_(1.0)
    assert reference_digest(adapters.base()) == before
    with torch.no_grad():
        next(value for _, value in adapters.frozen()).add_(1e-6)
    assert reference_digest(adapters.base()) != before


def test_a_reference_is_a_copy_without_gradients():
    policy = CausalPolicy(tiny_causal())
    next(value for _, value in policy.trained()).grad = torch.zeros(37, 16, dtype=torch.float64)
    base = policy.base()
    pointers = {value.data_ptr() for _, value in policy.trained()}
    assert not list(base.trained())
    assert all(value.grad is None and value.data_ptr() not in pointers for value in base.model.parameters())
