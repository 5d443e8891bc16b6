"""The audit of a run holds for recipes of several families and algorithms, and finds faults put into the real code."""

import copy
import dataclasses
import functools
from pathlib import Path

import pytest
import torch
from tiny_language_models import tiny_adapter, tiny_model

import assay.core._parts
import assay.core.advantages
import assay.core.estimator
import assay.policies.causal.engine
import assay.runs.language.weights
import assay.training.language.rollout
import assay.training.language.steps
import assay.training.language.update
from assay.core.estimator import Prepared
from assay.core.weights import totals
from assay.errors import ConfigError
from assay.policies.causal.engine import OwnEngine
from assay.policies.causal.model import CausalPolicy
from assay.runs.language.audit import asked, audit_recipe, audit_run, telling_miniature
from assay.runs.language.audit.gradient import declared, expected_updates, largest_group
from assay.runs.language.audit.small import family_of
from assay.runs.language.workshop import settings_of
from assay.training.language.recipe import build_language_recipe
from assay.verdicts import Verdict

INVARIANTS = ["I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I11", "I12"]
FEW = 30
"""Batches of groups: groups of two to one problem."""


def recipe(rl=None, **settings):
    given = {"model": "some/model", "data": "problems.jsonl", "rl": rl or {}, **settings}
    return build_language_recipe(given, place="here.toml", base=Path("/base"))


@functools.cache
def family(name):
    return tiny_model(name).config.to_dict()


def assert_hold(claims):
    assert not [str(claim) for claim in claims if claim.verdict is not Verdict.HOLDS]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    made = recipe({"temperature": 0.7, "num_generations": 4})
    return telling_miniature(made, family("gpt2"), tmp_path_factory.mktemp("gpt2"))


def test_adapters_on_gpt2_with_top_p_and_a_stop_string_hold():
    made = recipe({"top_p": 0.9}, lora=8, task={"stop": ["\n"]})
    record, claims, words = audit_recipe(made, family("gpt2"), most=FEW)
    assert [claim.name.split()[0] for claim in claims] == INVARIANTS
    assert_hold(claims)
    assert record["verdict"] == Verdict.HOLDS and record["tolerance"] == 1e-10
    assert claims[0].error < 1e-12 and "float64 (float32 in the run)" in words[1]


def test_two_passes_of_a_clipped_loss_on_llama_hold_to_the_rounding_of_its_norms(tmp_path):
    rl = {"algorithm": "dual_clip", "num_iterations": 2, "epsilon": 0.1, "delta": 2.0, "kl": "k3_loss", "beta": 0.1}
    made = telling_miniature(recipe(rl, policy={"gradient_checkpointing": True}), family("llama"), tmp_path)
    assert made.tolerance == 1e-5 and "LlamaForCausalLM in float32" in made.why
    assert_hold([asked(number, made) for number in ("I2", "I5", "I6", "I8", "I11")])


def test_what_has_no_objective_is_said_and_its_path_is_compared_with_the_core(tmp_path):
    made = telling_miniature(recipe({"algorithm": "grpo", "eps": 1e-4}), family("qwen2"), tmp_path)
    objective, path = expected_updates(made, most=FEW)
    assert objective.verdict is Verdict.COULD_NOT_RUN and "declares no objective" in objective.detail
    assert path.name.startswith("I1") and "grpo's loss alone" in path.detail
    assert_hold([path, *(asked(number, made) for number in ("I2", "I3", "I4", "I8"))])


@pytest.mark.parametrize(
    "rl", [{"algorithm": "dapo"}, {"mask_truncated_completions": True}, {"kl": "exact_token_loss"}]
)
def test_the_expected_update_of_other_recipes(rl, tmp_path):
    made = expected_updates(telling_miniature(recipe(rl), family("gpt2"), tmp_path), most=FEW)
    assert made[-1].verdict is Verdict.HOLDS, str(made[-1])
    assert made[-1].error < 1e-12


def test_groups_are_as_large_as_the_budget_allows():
    assert largest_group(3, 7, least=2, most=84) == 3  # 7 responses make 84 multisets of 3, and 28 of 2
    assert largest_group(3, 7, least=2, most=83) == 2
    assert largest_group(8, 7, least=2, most=10**6) == 8
    assert largest_group(8, 7, least=3, most=1) == 3


def test_an_objective_is_declared_where_it_is_one():
    assert declared(recipe({"algorithm": "mean_centred", "beta": 0.0}), 4) == "0.75*reward"
    assert declared(recipe({"mask_truncated_completions": True}), 4) is None
    assert declared(recipe({"kl": "k3_loss", "beta": 0.1}), 4) == "reward - 0.1*frozen_forward_kl"
    assert declared(recipe({"kl": "k3_loss", "beta": 0.1, "top_k": 2}), 4) is None


# Faults put into the code that trains.


def disagrees(check):
    return check.verdict is Verdict.DISAGREES and bool(check.findings)


def test_denominators_of_the_part_at_hand(gpt2, monkeypatch):
    def take(self, index):
        rows = self.rows.take(index)
        return Prepared(rows, self.adv[index], totals(rows.mask, rows.group))

    monkeypatch.setattr(Prepared, "take", take)
    check = asked("I2", gpt2)
    assert disagrees(check) and "token_budget" in check.findings[0]


def test_a_shifted_log_probability(gpt2, monkeypatch):
    real = CausalPolicy.token_logp

    def shifted(self, *args, **kwargs):
        made = real(self, *args, **kwargs)
        return dataclasses.replace(made, logp=made.logp.roll(1))

    monkeypatch.setattr(CausalPolicy, "token_logp", shifted)
    check = asked("I8", gpt2)
    assert disagrees(check) and "the scorer" in check.findings[0]


def test_a_temperature_that_scoring_ignores(gpt2, monkeypatch):
    real = CausalPolicy.token_logp
    monkeypatch.setattr(
        CausalPolicy, "token_logp", lambda self, row, **given: real(self, row, **{**given, "temperature": 1.0})
    )
    assert disagrees(asked("I8", gpt2))


def test_a_temperature_that_sampling_ignores(gpt2, monkeypatch):
    real = OwnEngine._draw

    def draw(self, batch, decoding):
        real(self, batch, dataclasses.replace(decoding, temperature=1.0))

    monkeypatch.setattr(OwnEngine, "_draw", draw)
    check = asked("I8", gpt2)
    assert disagrees(check) and "the engine" in check.findings[0]


def test_a_baseline_with_its_own_sample(gpt2, monkeypatch):
    monkeypatch.setattr(assay.core.advantages, "leave_one_out", assay.core.advantages.mean_centred)
    (check,) = expected_updates(gpt2, most=FEW)
    assert disagrees(check)
    assert check.error == pytest.approx(0.5)  # (G - 1) / G with groups of two


def test_a_reference_that_moves_with_the_policy(gpt2, monkeypatch):
    monkeypatch.setattr(CausalPolicy, "base", lambda self: self)
    check = asked("I6", gpt2)
    assert disagrees(check) and "the reference moves with the policy" in check.findings
    assert disagrees(expected_updates(gpt2, most=FEW)[0])


def test_a_ratio_that_is_not_one_at_the_first_pass(gpt2, monkeypatch):
    real = assay.training.language.update.loss

    def loss(algorithm, settings, part):
        rows = dataclasses.replace(part.rows, logp_old=part.rows.logp_old * (1 - 1e-12))
        return real(algorithm, settings, dataclasses.replace(part, rows=rows))

    monkeypatch.setattr(assay.training.language.update, "loss", loss)
    check = asked("I6", gpt2)
    assert disagrees(check) and "pass 1" in check.findings[0]


def test_an_engine_whose_weights_stay_behind(gpt2, monkeypatch):
    real = OwnEngine.__init__

    def stale(self, policy, **given):
        real(self, CausalPolicy(copy.deepcopy(policy.model)), **given)

    monkeypatch.setattr(OwnEngine, "__init__", stale)
    check = asked("I7", gpt2)
    assert disagrees(check) and "after the weights moved" in check.findings[0]


def test_a_version_that_nobody_compares(gpt2, monkeypatch):
    real = assay.training.language.steps.roll_out
    monkeypatch.setattr(
        assay.training.language.steps,
        "roll_out",
        lambda engine, *args, version, **given: real(engine, *args, version=engine.version, **given),
    )
    check = asked("I7", gpt2)
    assert disagrees(check) and "a step goes through" in check.findings[0]


def test_moments_that_a_checkpoint_loses(gpt2, monkeypatch):
    real = assay.runs.language.weights.from_tensors

    def forgetful(*args, **given):
        state = real(*args, **given)
        state.optimizer.state.clear()
        return state

    monkeypatch.setattr(assay.runs.language.weights, "from_tensors", forgetful)
    check = asked("I11", gpt2)
    assert disagrees(check) and any("exp_avg" in finding for finding in check.findings)


def test_random_numbers_that_all_samples_share(gpt2, monkeypatch):
    real = assay.policies.causal.engine.uniforms
    monkeypatch.setattr(
        assay.policies.causal.engine,
        "uniforms",
        lambda *args, sample, **given: real(*args, sample=[0] * len(sample), **given),
    )
    check = asked("I12", gpt2)
    assert disagrees(check) and "spells a token that is not" in check.findings[-1]


def test_a_missing_score_that_counts_as_zero(gpt2, monkeypatch):
    real = assay.training.language.rollout.scores
    monkeypatch.setattr(
        assay.training.language.rollout,
        "scores",
        lambda values, **given: real([value or 0.0 for value in values], **given),
    )
    check = asked("I4", gpt2)
    assert disagrees(check) and "without a score" in check.findings[0]


def test_an_advantage_where_there_is_nothing_to_learn(gpt2, monkeypatch):
    real = assay.core.advantages.leave_one_out
    monkeypatch.setattr(assay.core.advantages, "leave_one_out", lambda made, group: real(made, group) + 1e-6)
    check = asked("I4", gpt2)
    assert disagrees(check) and "one response over and over" in check.findings[0]


def test_a_mask_that_multiplies(gpt2, monkeypatch):
    monkeypatch.setattr(assay.core._parts, "masked", lambda values, mask: values * mask)
    check = asked("I3", gpt2)
    assert disagrees(check) and "NaN where responses are over" in check.findings[0]


def test_a_prompt_that_reads_the_group_before_it(gpt2, monkeypatch):
    real = assay.training.language.batch.pack

    def leaking(prompts, responses):
        row = real(prompts, responses)
        first, *others = row.groups
        return dataclasses.replace(
            row, groups=(first, *(dataclasses.replace(g, start=0, prompt=g.start + g.prompt) for g in others))
        )

    monkeypatch.setattr(assay.training.language.batch, "pack", leaking)
    check = asked("I3", gpt2)
    assert disagrees(check) and "NaN all over group 0" in check.findings[0]


def test_a_setting_that_nothing_reads(gpt2, monkeypatch):
    monkeypatch.setattr(assay.training.language.steps, "scheduled", lambda kind, rate, **given: rate)
    check = asked("I5", gpt2)
    assert disagrees(check)
    assert check.findings == ("rl.lr_scheduler_type = constant: changed to linear, and nothing changes",)


def test_what_stops_a_step_is_why_an_invariant_could_not_be_asked(gpt2, monkeypatch):
    def broken(*args, **given):
        raise ZeroDivisionError("nothing there")

    monkeypatch.setattr(assay.training.language.steps, "prepare", broken)
    check = asked("I2", gpt2)
    assert check.verdict is Verdict.COULD_NOT_RUN and "ZeroDivisionError: nothing there" in check.detail


# From a run directory.


def run_directory(place, rl=None, **settings):
    import tomli_w

    (place / "model").mkdir(parents=True)
    config = settings_of(recipe(rl, **settings))
    (place / "config.toml").write_bytes(tomli_w.dumps(config).encode())
    return place


def test_a_run_is_audited_from_its_settings_and_the_shape_of_its_model(tmp_path, monkeypatch):
    place = run_directory(tmp_path / "run", {"top_p": 1e-3})
    tiny_model("gpt2").config.save_pretrained(place / "model")
    record, claims, _ = audit_run(place)  # nothing can be drawn but one response, which is said at once
    assert [claim.verdict for claim in claims] == [Verdict.COULD_NOT_RUN]
    assert "top_p = 0.001" in claims[0].detail and record["verdict"] == Verdict.COULD_NOT_RUN


def test_the_family_of_adapters_is_that_of_their_base(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    tiny_adapter("llama").get_base_model().config.save_pretrained(base)
    made = recipe(lora=2, model=str(base))
    assert family_of(made, tmp_path / "run" / "model")["model_type"] == "llama"


def test_what_is_no_run_with_rl_is_refused(tmp_path):
    place = run_directory(tmp_path / "run", {"steps": 0})
    tiny_model("gpt2").config.save_pretrained(place / "model")
    with pytest.raises(ConfigError, match="no RL in this run"):
        audit_run(place)
    (place / "config.toml").write_text("seed = 1\n")
    with pytest.raises(ConfigError, match="not the run of a language model"):
        audit_run(place)


def test_no_global_random_number_is_drawn(gpt2):
    before = torch.get_rng_state()
    asked("I12", gpt2)
    assert torch.equal(torch.get_rng_state(), before)
