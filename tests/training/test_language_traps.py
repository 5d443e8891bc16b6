"""Every public bug whose kind this trainer could have, with the test that would catch it here."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from policies.tiny_policies import twins
from tiny_work import rl_state, tiny_recipe, workplace

from assay.errors import ConfigError
from assay.training.language.steps import rl_step
from specimens.lists import read_list

KINDS = {
    "masking/eos/padding",
    "logprob/temperature/dtype",
    "loss-aggregation/length-norm",
    "grad-accumulation/distributed-reduction",
    "reference-model-sync",
    "on/off-policy-staleness",
    "checkpoint/resume",
    "seed/reproducibility",
}
TESTS = Path(__file__).parent.parent

GRADIENTS = "policies/test_causal_gradients.py::"
SAMPLER = "policies/test_causal_sampler.py::"
TOKENS = "policies/test_causal_tokens.py::"
LOADING = "policies/test_causal_loading.py::"
BATCH = "training/test_language_batch.py::"
UPDATE = "training/test_language_update.py::"
STEPS = "training/test_language_steps.py::"
LOOP = "training/test_language_loop.py::"
STATE = "training/test_language_state.py::"
HERE = "training/test_language_traps.py::"

SPLIT = UPDATE + "test_every_algorithm_has_one_gradient_in_every_split"
LATER = UPDATE + "test_so_it_has_at_a_later_pass_with_ratios"
PLACED = UPDATE + "test_every_placement_of_the_kl_has_one_gradient_in_every_split"
ALONE = GRADIENTS + "test_what_stands_beside_a_response_does_not_change_its_log_probability"
NAIVE = GRADIENTS + "test_gradients_are_those_of_the_naive_forward_in_any_split"
REPLAYED = SAMPLER + "test_the_scorer_says_what_the_sampler_drew_with"
UNDER_CUT = STEPS + "test_under_a_cut_the_expected_update_is_that_of_the_policy_that_draws"
EXPECTED = STEPS + "test_the_expected_update_is_the_gradient_of_reward_less_kl"
TRUNCATED = STEPS + "test_truncated_responses_leave_where_the_recipe_says_so"
UNSCORED = STEPS + "test_unscorable_responses_leave_their_group_and_every_count"
ITERATIONS = STEPS + "test_two_iterations_are_two_clipped_updates_on_one_batch"
STALE = STEPS + "test_a_sampler_with_other_weights_is_refused"
FAR_OFF = STEPS + "test_a_sampler_that_is_too_far_off_is_refused_and_nothing_moves"
FIRST = UPDATE + "test_at_the_first_pass_every_ratio_is_exactly_one"
RESUMED = LOOP + "test_an_interruption_after_any_step_leaves_no_trace"
ADAPTED = SAMPLER + "test_adapters_are_drawn_from"
DRAWN = HERE + "test_only_drawn_tokens_are_trained_on_and_all_of_them"
GAP = HERE + "test_the_gap_is_measured_over_one_support_at_one_temperature"
NO_ADAPTER_AWAY = HERE + "test_no_engine_is_given_adapters_that_it_would_not_read"
ANY_LIMIT = SAMPLER + "test_no_limit_and_no_neighbour_changes_a_response"

WHERE: dict[str, str] = {
    # masking
    "MASK-01": ALONE,
    "MASK-02": LOADING + "test_every_end_that_the_settings_declare_is_read",
    "MASK-03": DRAWN,
    "MASK-07": EXPECTED,
    "MASK-08": TRUNCATED,
    "MASK-09": EXPECTED,
    "MASK-11": DRAWN,
    "MASK-12": DRAWN,
    "MASK-13": DRAWN,
    "MASK-14": SPLIT,
    "MASK-15": STEPS + "test_a_token_without_a_sampling_probability_is_refused_whatever_the_algorithm",
    "MASK-16": BATCH + "test_a_packed_part_predicts_each_response_from_its_own_prompt",
    "MASK-17": UPDATE + "test_scores_are_those_of_plain_rows",
    "MASK-18": ALONE,
    "MASK-19": TOKENS + "test_padding_is_never_used",
    "MASK-20": EXPECTED,
    # log-probabilities
    "LP-01": EXPECTED,
    "LP-02": GAP,
    "LP-03": GAP,
    "LP-04": NAIVE,
    "LP-05": REPLAYED,
    "LP-06": UPDATE + "test_the_entropy_is_that_of_the_tempered_policy",
    "LP-07": REPLAYED,
    "LP-08": GAP,
    "LP-09": UNDER_CUT,
    "LP-10": REPLAYED,
    "LP-11": FIRST,
    "LP-12": FIRST,
    "X-11": REPLAYED,
    # aggregation
    "AGG-01": TRUNCATED,
    "AGG-02": ITERATIONS,
    "AGG-03": SPLIT,
    "AGG-04": SPLIT,
    "AGG-05": SPLIT,
    "AGG-06": PLACED,
    "AGG-07": SPLIT,
    "AGG-08": STEPS + "test_other_algorithms_ascend_the_multiple_that_they_should",
    "AGG-09": UPDATE + "test_the_likelihood_of_answers_is_a_mean_over_responses_of_sums",
    "AGG-10": SPLIT,
    "AGG-11": SPLIT,
    "AGG-12": SPLIT,
    "AGG-13": SPLIT,
    "AGG-14": BATCH + "test_parts_hold_every_row_once_in_order_within_the_budget",
    "AGG-15": UPDATE + "test_the_entropy_is_that_of_the_tempered_policy",
    "AGG-16": SPLIT,
    "AGG-17": UNSCORED,
    "AGG-18": UPDATE + "test_the_likelihood_of_answers_is_a_mean_over_responses_of_sums",
    # accumulation
    "GA-01": BATCH + "test_parts_hold_every_row_once_in_order_within_the_budget",
    "GA-02": SPLIT,
    "GA-03": SPLIT,
    "GA-05": UPDATE + "test_the_likelihood_of_answers_is_a_mean_over_responses_of_sums",
    "GA-06": LATER,
    "X-12": SPLIT,
    "X-13": SPLIT,
    # the reference
    "REF-01": RESUMED,
    "REF-03": LOOP + "test_with_adapters_the_reference_is_the_base_whatever_a_warmup_taught",
    "REF-04": GRADIENTS + "test_adapters_are_trained_and_the_reference_is_the_base_without_them",
    "REF-05": LOOP + "test_no_reference_is_held_where_no_kl_is_asked_for",
    # staleness
    "OFF-01": ADAPTED,
    "OFF-02": ADAPTED,
    "OFF-03": NO_ADAPTER_AWAY,
    "OFF-04": NO_ADAPTER_AWAY,
    "OFF-05": FAR_OFF,
    "OFF-07": ITERATIONS,
    "OFF-08": STEPS + "test_steps_go_through_the_problems_in_a_cycle_with_numbers_of_their_own",
    "X-14": STALE,
    # checkpoints
    "CK-01": RESUMED,
    "CK-02": LOOP + "test_a_finished_run_does_nothing_more",
    "CK-04": RESUMED,
    "CK-05": STATE + "test_what_is_saved_is_what_is_trained",
    # seeds
    "SD-01": STEPS + "test_random_numbers_are_addressed_by_seed_step_problem_and_sample",
    "SD-02": SAMPLER + "test_other_steps_samples_and_problems_have_other_numbers",
    "SD-03": ANY_LIMIT,
}
"""Identifier of a report to the test that would catch it, as a path under ``tests`` and a name."""


@cache
def names_in(path: str) -> set[str]:
    """Return the names of a module's tests."""
    return {node.name for node in ast.parse((TESTS / path).read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_report_of_these_kinds_is_in_the_table():
    assert WHERE.keys() == {bug.id for bug in read_list().values() if bug.kind in KINDS}
    assert {bug.kind for bug in read_list().values()} >= KINDS


@pytest.mark.parametrize("bug", WHERE)
def test_every_test_that_the_table_names_exists(bug):
    path, name = WHERE[bug].split("::")
    assert name in names_in(path)


def stepped(rl: dict[str, Any]) -> tuple[dict[str, Any], Any, Any]:
    policy, _ = twins(vocabulary=5)
    recipe = tiny_recipe(
        rl={"steps": 1, "problems_per_step": 3, "num_generations": 4, "max_completion_length": 5, "beta": 0.0, **rl}
    )
    seen: list[Any] = []
    record = rl_step(rl_state(policy, recipe), workplace(policy, recipe, on_rollout=seen.append))
    return record, seen[0], recipe


def test_only_drawn_tokens_are_trained_on_and_all_of_them(monkeypatch):
    """None is added, tokenized again or cut off between the sampler and the loss; the one that ends is among them."""
    from assay.training.language import steps

    scored: list[torch.Tensor] = []
    real = steps.differentiate

    def watched(*args: Any, **kwargs: Any) -> Any:
        made = real(*args, **kwargs)
        scored.append(made.scored)
        return made

    monkeypatch.setattr(steps, "differentiate", watched)
    _, rollout, _ = stepped({"kl": "k3_loss", "beta": 0.1})  # with a KL in the loss every response is computed
    assert rollout.batch.responses == tuple(one.tokens for one in rollout.drawn)
    assert [response.tokens for response in rollout.responses] == [one.tokens for one in rollout.drawn]
    assert scored[0].sum(1).tolist() == [len(one.tokens) for one in rollout.drawn]
    assert any(one.tokens[-1] == 1 for one in rollout.drawn)


@pytest.mark.parametrize("how", [{}, {"temperature": 0.6}, {"temperature": 1.4, "top_k": 3, "top_p": 0.9}])
def test_the_gap_is_measured_over_one_support_at_one_temperature(how):
    record, _, _ = stepped(how)
    assert record["stepped"]
    assert record["sampling/sampling_logp_difference/max"] < 1e-12
    assert record["sampling/importance_sampling_ratio/max"] == pytest.approx(1.0, abs=1e-12)


def test_no_engine_is_given_adapters_that_it_would_not_read():
    with pytest.raises(ConfigError, match="lora = 4: policy.engine = 'vllm' takes whole weights"):
        tiny_recipe(lora=4, policy={"engine": "vllm", "dtype": "float32"})
