import math

import pytest
import torch

from assay.audit.invariants.fixed_points import fixed_points, reference_after_restart
from assay.tree.fields import entropy, expected_length, expected_reward, frozen_reverse_kl, reverse_kl
from assay.verdicts import Verdict


def total(values, mask):
    return torch.where(mask > 0, values, 0.0).sum(1)


def honest(logp, logp_old, logp_ref, mask):
    ratio = (logp - logp_old).exp()
    return {
        "ratio": float(total(ratio, mask).sum() / mask.sum()),
        "kl": total(logp - logp_ref, mask).mean(),
        "clip_fraction": (((ratio - 1).abs() > 0.2) * mask).sum() / mask.sum(),
    }


def test_what_is_known_at_the_start_is_read():
    made = fixed_points(honest)
    assert made.verdict is Verdict.HOLDS and made.invariant == "I6" and made.error == 0.0
    assert made.detail.startswith("clip_fraction, kl, ratio")


def test_a_metric_that_counts_padding_is_found_where_there_is_some():
    def over_all_positions(logp, logp_old, mask):
        return {"ratio": ((logp - logp_old).exp() * mask).mean()}

    made = fixed_points(over_all_positions)
    assert made.verdict is Verdict.DISAGREES and made.findings
    assert all("at the start, not 1: batch of" in finding for finding in made.findings)


def test_a_broadcast_shows_as_the_number_of_rows():
    def columns_times_rows(logp, logp_old, mask):
        weights, rows = total(logp - logp_old, mask).exp()[:, None], mask.amax(1)
        return {"ratio": (weights * rows).sum() / rows.sum()}

    made = fixed_points(columns_times_rows, group_size=3)
    assert made.error == pytest.approx(11.0)  # two groups of 3 in each of 2 problems: 12 in place of 1
    assert made.findings[0] == "ratio reads 3 at the start, not 1: batch of 3 responses in 1 groups"


def test_not_a_number_is_not_right():
    made = fixed_points(lambda logp: {"kl": float("nan")})
    assert made.verdict is Verdict.DISAGREES and math.isinf(made.error)


def to_itself(logp, mask):
    return {"ratio": total((logp - logp).exp(), mask).sum() / mask.sum()}


def wrong_side(logp_old, logp_ref, mask):
    """A KL between a policy and itself."""
    return {"kl": total(logp_ref - logp_ref, mask).mean()}


@pytest.mark.parametrize(
    ("metrics", "name"),
    [
        (lambda logp: {"ratio": 1.0}, "ratio reads 1"),
        (to_itself, "ratio reads 1"),
        (wrong_side, "kl reads 0"),
        (lambda logp: {"clip_fraction": 0.0}, "clip_fraction reads 0"),
        (lambda logp: {"kl_old": 0}, "kl_old reads 0"),
    ],
)
def test_a_metric_that_compares_nothing_is_found(metrics, name):
    made = fixed_points(metrics)
    assert made.verdict is Verdict.DISAGREES and made.error == 0.0
    assert made.findings == (f"{name} on every batch where the policies differ, too: it compares nothing",)


def test_metrics_in_float32_are_allowed_its_roundings():
    def single(logp, logp_old, logp_ref, mask):
        return honest(logp.float(), logp_old.float(), logp_ref.float(), mask)

    made = fixed_points(single, exact={"kl": of(reverse_kl)})
    assert made.verdict is Verdict.HOLDS and made.tolerance == 1e-5 and made.error > 1e-9, made
    assert fixed_points(honest).tolerance == 1e-9


@pytest.mark.parametrize("value", [None, "0", float("nan"), float("inf"), torch.zeros(2), 1j, object()])
def test_an_exact_value_that_is_no_finite_number_is_no_verdict(value):
    made = fixed_points(honest, exact={"kl": lambda problem: value})
    assert made.verdict is Verdict.COULD_NOT_RUN and "the exact value of 'kl' returned" in made.detail
    if isinstance(value, float):
        made = fixed_points(honest, at_start={"kl": value})
        assert made.verdict is Verdict.COULD_NOT_RUN and "at_start['kl'] returned" in made.detail


def test_an_exact_value_that_raises_is_no_verdict():
    made = fixed_points(honest, exact={"kl": lambda problem: 1 / 0})
    assert made.verdict is Verdict.COULD_NOT_RUN and "the exact value of 'kl' raised ZeroDivision" in made.detail


def test_other_fixed_points_can_be_stated():
    def entropy_of_two(logp):
        return {"batch": float(len(logp)) * 0 + 5.0}

    assert fixed_points(entropy_of_two, at_start={"batch": 5.0}).verdict is Verdict.HOLDS
    assert fixed_points(entropy_of_two, at_start={"batch": 4.0}).verdict is Verdict.DISAGREES


def logged(logp, logp_ref, reward, mask):
    gap = logp_ref - logp
    return {
        "k1": total(-gap, mask).mean(),
        "k3": total(gap.exp() - 1 - gap, mask).mean(),
        "reward": reward.mean(),
        "length": mask.sum(1).mean(),
        "entropy": -total(logp, mask).mean(),
    }


def of(scalar):
    return lambda problem: float(scalar(problem, problem.logits))


EXACT = {
    "k1": of(reverse_kl),
    "k3": of(frozen_reverse_kl),
    "reward": of(expected_reward),
    "length": of(expected_length),
    "entropy": of(entropy),
}


def test_unbiased_estimates_are_exact_in_the_mean():
    made = fixed_points(logged, exact=EXACT)
    assert made.verdict is Verdict.HOLDS, made.findings


def test_a_biased_estimate_is_found_with_both_values():
    def squared(logp, logp_ref, mask):
        return {"kl": (total(logp - logp_ref, mask).square() / 2).mean()}

    at_start = fixed_points(squared)
    assert at_start.verdict is Verdict.HOLDS, "where the policies are one, it is zero as well"
    made = fixed_points(squared, exact={"kl": of(reverse_kl)})
    assert made.verdict is Verdict.DISAGREES and len(made.findings) == 2
    assert "in the mean and" in made.findings[0] and "by enumeration" in made.findings[0]


CANNOT_READ = {
    "nothing known": (lambda logp: {"loss": 0.0}, {}, "return no ratio and no kl"),
    "what was asked for is missing": (lambda logp: {"kl": 0.0}, {"k1": of(reverse_kl)}, "return no k1"),
    "no mapping": (lambda logp: 1.0, {}, "returned float"),
    "a vector": (lambda logp: {"kl": logp.sum(1)}, {}, "it must return one number"),
    "a word": (lambda logp: {"kl": "low"}, {}, "returned str; it must return one number"),
    "raises": (lambda logp: {"kl": [][0]}, {}, "raised IndexError"),
    "asks for what there is not": (lambda logprobs: {"kl": 0.0}, {}, "asks for 'logprobs'"),
}


@pytest.mark.parametrize("name", CANNOT_READ)
def test_what_cannot_be_read_could_not_run(name):
    metrics, exact, reason = CANNOT_READ[name]
    made = fixed_points(metrics, exact=exact)
    assert made.verdict is Verdict.COULD_NOT_RUN and made.invariant == "I6"
    assert reason in made.detail


def policy(weights):
    return weights["base"] + weights["adapter"]


def right(initial, saved):
    return policy(saved or initial), policy(initial)


def test_a_frozen_copy_of_the_first_policy_holds():
    assert reference_after_restart(right).verdict is Verdict.HOLDS


WRONG = {
    "the reference is what was loaded": (
        lambda initial, saved: (policy(saved or initial),) * 2,
        "after a restart: KL to the reference is 0,",
    ),
    "the reference lacks the adapter": (
        lambda initial, saved: (policy(saved or initial), initial["base"]),
        "at step 0: KL to the reference is",
    ),
    "nothing is loaded": (
        lambda initial, saved: (policy(initial), policy(initial)),
        "after a restart: the policy is",
    ),
    "policy and reference are swapped": (
        lambda initial, saved: right(initial, saved)[::-1],
        "after a restart: the policy is",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_another_reference_is_found(name):
    start, finding = WRONG[name]
    made = reference_after_restart(start)
    assert made.verdict is Verdict.DISAGREES and made.invariant == "I6" and made.remedy
    assert finding in made.findings[0]


def test_a_trainer_may_change_what_it_is_given():
    """The weights that it gets are its own; the comparison does not move with them."""

    def in_place(initial, saved):
        reference = policy(initial).clone()
        if saved is not None:
            initial["base"].copy_(saved["base"])
            initial["adapter"].copy_(saved["adapter"])
        return policy(initial), reference

    def in_place_and_wrong(initial, saved):
        made, _ = in_place(initial, saved)
        return made, policy(initial)

    assert reference_after_restart(in_place).verdict is Verdict.HOLDS
    assert reference_after_restart(in_place_and_wrong).verdict is Verdict.DISAGREES


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (lambda initial, saved: None, "returned NoneType"),
        (lambda initial, saved: (policy(initial), policy(initial)[0]), "need a tensor of real numbers of shape (3, 3)"),
        (lambda initial: None, "raised TypeError"),
    ],
)
def test_a_trainer_that_cannot_be_started_could_not_run(start, reason):
    made = reference_after_restart(start)
    assert made.verdict is Verdict.COULD_NOT_RUN and reason in made.detail
