"""The audit against what is known of these losses on paper: identities that hold for every policy and world."""

import dataclasses
import functools
import math
import re

import pytest
import torch

from assay import audit
from assay.errors import InputError
from assay.tree.world import default_world
from assay.tree.worlds import decoded, small_world
from assay.verdicts import Verdict

BETA = 0.1


def total(logp, mask):
    """Sum each response's tokens, whatever stands under the mask."""
    return torch.where(mask > 0, logp, 0.0).sum(1)


def group_mean(values, group):
    sums = torch.zeros(int(group.max()) + 1, dtype=values.dtype).index_add(0, group, values)
    return (sums / torch.bincount(group))[group]


def rloo(logp, adv, mask):
    return -(adv * total(logp, mask)).mean()


def self_inclusive(logp, reward, group, mask):
    return -((reward - group_mean(reward, group)) * total(logp, mask)).mean()


def plain_reinforce(logp, reward, mask):
    return -(reward * total(logp, mask)).mean()


def kl_in_the_reward(logp, logp_ref, reward, group, mask):
    returns = (reward - BETA * total(logp - logp_ref, mask)).detach()
    size = len(reward) // (int(group.max()) + 1)
    others = (group_mean(returns, group) * size - returns) / (size - 1)
    return -((returns - others) * total(logp, mask)).mean()


def k1_in_the_loss(logp, logp_ref, mask):
    return BETA * total(logp - logp_ref, mask).mean()


def k2_of_the_response_in_the_loss(logp, logp_ref, mask):
    return BETA * (total(logp - logp_ref, mask).square() / 2).mean()


def k2_of_each_token_in_the_loss(logp, logp_ref, mask):
    return BETA * total((logp - logp_ref).square() / 2, mask).mean()


def k3_of_each_token_in_the_loss(logp, logp_ref, mask):
    gap = logp_ref - logp
    return BETA * total(gap.exp() - 1 - gap, mask).mean()


def k3_times_the_ratio(logp, logp_ref, mask):
    gap = logp_ref - logp
    return BETA * total((logp - logp.detach()).exp() * (gap.exp() - 1 - gap), mask).mean()


def entropy_bonus(logits, mask):
    table = logits.log_softmax(-1)
    return -BETA * total(-(table.exp() * table).sum(-1), mask).mean()


IDENTITIES = [
    (rloo, {"reward": 1.0}),
    (plain_reinforce, {"reward": 1.0}),
    (self_inclusive, {"reward": 2 / 3}),  # (G - 1) / G at G = 3
    (kl_in_the_reward, {"reward": 1.0, "kl": -BETA}),
    (k1_in_the_loss, {}),
    (k2_of_the_response_in_the_loss, {"kl": -BETA}),
    (k2_of_each_token_in_the_loss, {"frozen_kl": -BETA}),
    (k3_of_each_token_in_the_loss, {"frozen_forward_kl": -BETA}),
    (k3_times_the_ratio, {"frozen_kl": -BETA}),
    (entropy_bonus, {"frozen_entropy": BETA}),
]


@pytest.mark.parametrize(("function", "expected"), IDENTITIES, ids=lambda value: getattr(value, "__name__", ""))
def test_what_a_loss_ascends_is_what_is_known_of_it(function, expected):
    size = 2 if function is entropy_bonus else 3
    report = audit.loss(function, group_size=size)
    assert report.ascends.coefficients == pytest.approx(expected, abs=1e-12)
    assert report.ascends.exact
    stated = " + ".join(f"{value!r}*{name}" for name, value in expected.items()).replace("+ -", "- ")
    if expected:
        assert audit.loss(function, objective=stated, group_size=size).holds
    assert report.holds == (expected == {"reward": 1.0})


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_self_inclusive_mean_shrinks_the_gradient_by_its_own_share(size):
    report = audit.loss(self_inclusive, group_size=size)
    assert report.ascends.coefficients == pytest.approx({"reward": (size - 1) / size}, abs=1e-12)
    assert report.verdict is Verdict.DISAGREES
    assert "0.5 x gradient of reward" in str(audit.loss(self_inclusive, group_size=2))


def test_dividing_by_the_groups_deviation_weighs_problems_by_the_known_factor():
    """c_G(p) = Σ_k C(G,k) p^k (1-p)^(G-k) k (G-k) / (G² p (1-p) s_k), s_k the deviation of k ones among G."""

    def std_scaled(logp, reward, group, mask):
        centred = reward - group_mean(reward, group)
        size = len(reward) // (int(group.max()) + 1)
        deviation = (group_mean(centred.square(), group) * size / (size - 1)).sqrt() + 1e-4
        return -(centred / deviation * total(logp, mask)).mean()

    size, (easy, hard) = 3, default_world()
    p = float((easy.sampler_logp.exp() * easy.reward).sum())
    factor = sum(
        math.comb(size, k) * p**k * (1 - p) ** (size - k) * k * (size - k)
        / (size**2 * p * (1 - p) * (math.sqrt(k * (size - k) / (size * (size - 1))) + 1e-4))
        for k in range(1, size)
    )  # fmt: skip
    report = audit.loss(std_scaled, group_size=size)
    assert report.by_problem[f"1 {easy.name}"].coefficients == pytest.approx({"reward": factor}, rel=1e-10)
    assert report.by_problem[f"1 {easy.name}"].exact
    assert not report.by_problem[f"2 {hard.name}"].exact, "graded rewards have no such factor"
    assert not report.ascends.exact


def test_a_mean_over_each_responses_own_tokens_is_no_known_objective():
    def own_length(logp, adv, mask):
        return -(adv * total(logp, mask) / mask.sum(1)).mean()

    report = audit.loss(own_length, group_size=2)
    assert not report.ascends.exact and report.ascends.residual > 0.01
    assert "no combination" in str(report)


def test_a_mean_over_the_batchs_tokens_depends_on_the_partition():
    def token_mean(logp, adv, mask):
        return -(adv * total(logp, mask)).sum() / mask.sum()

    verdicts = {claim.name: claim.verdict for claim in audit.loss(token_mean, group_size=2, measure_curl=False).claims}
    assert verdicts["I2 partition"] is Verdict.DISAGREES
    assert verdicts["I4 group semantics"] is Verdict.HOLDS


def test_off_policy_the_ratio_of_the_whole_response_is_exact_and_none_is_not():
    world = default_world(off_policy=True)

    def whole_ratio(logp, logp_old, reward, mask):
        ratio = total(logp - logp_old, mask).exp()
        return -(ratio * reward).mean()

    assert audit.loss(whole_ratio, group_size=2, world=world).holds
    stale = audit.loss(plain_reinforce, group_size=2, world=world)
    assert stale.verdict is Verdict.DISAGREES and not stale.ascends.exact


def test_a_decoder_that_the_scorer_does_not_know_of_is_a_sampler_that_differs():
    """At another temperature the whole ratio to the sampler mends it; where support is cut, nothing can."""

    def whole_ratio(logp, logp_sampler, reward, mask):
        return -(total(logp - logp_sampler, mask).exp() * reward).mean()

    tempered, cut = decoded(default_world(), temperature=0.6), decoded(default_world(), top_k=2)
    assert audit.loss(plain_reinforce, group_size=2, world=tempered).verdict is Verdict.DISAGREES
    assert audit.loss(whole_ratio, group_size=2, world=tempered).holds
    missing = audit.loss(whole_ratio, group_size=2, world=cut)
    assert claim_of(missing, "I1").verdict is Verdict.DISAGREES
    drawn = [int((problem.sampler_logp > float("-inf")).sum()) for problem in cut]
    assert max(drawn) < 15 and f"{drawn[0]} responses" in missing.exactness


def test_variance_is_measured_against_leave_one_out():
    own = audit.loss(rloo, group_size=3)
    assert own.variance_ratio == pytest.approx(1.0, rel=1e-9)
    without_baseline = audit.loss(plain_reinforce, group_size=3)
    independent = 0.0  # a mean of three independent draws of r s: (E|r s|² - |E r s|²) / 3
    for problem in default_world():
        leaf = problem.logits.clone().requires_grad_()
        logp = problem.tree.token_logp(leaf).sum(1)
        score = torch.stack([torch.autograd.grad(one, leaf, retain_graph=True)[0].flatten() for one in logp])
        drawn, p = problem.reward[:, None] * score, logp.detach().exp()
        independent += float(p @ drawn.square().sum(1) - (p @ drawn).square().sum()) / 3
    assert without_baseline.holds
    assert without_baseline.variance == pytest.approx(independent, rel=1e-10)
    assert without_baseline.variance_ratio == pytest.approx(independent / own.variance, rel=1e-9)


def fault(report, name):
    claim = next(claim for claim in report.claims if claim.name == name)
    assert claim.verdict is Verdict.DISAGREES and claim.findings
    return claim.findings[0]


def test_values_under_the_mask_must_not_count():
    def forgets_the_mask(logp, adv):
        return -(adv * logp.sum(1)).mean()

    report = audit.loss(forgets_the_mask, group_size=2)
    assert "nan under the mask" in fault(report, "I3 masked positions")

    def counts_the_padding(logp, adv, mask):
        return -(adv * total(logp, mask)).mean() / mask.shape[1]

    assert "one more padded position" in fault(audit.loss(counts_the_padding, group_size=2), "I3 masked positions")


def test_groups_must_be_taken_from_their_ids():
    def groups_by_position(logp, reward, mask):
        pairs = reward.view(-1, 2)
        adv = (pairs - pairs.flip(1)).flatten()
        return -(adv * total(logp, mask)).mean()

    assert "row" in fault(audit.loss(groups_by_position, group_size=2), "I4 group semantics")


def test_a_loss_with_side_effects_is_found_out():
    def impure(logp, reward, mask):
        reward.mul_(1.0).add_(1e-3)
        return -(reward * total(logp, mask)).mean()

    def random(logp, reward, mask):
        return -(reward * total(logp, mask) * (1 + torch.rand(1).double())).mean()

    assert "changes its input reward" in fault(audit.loss(impure, group_size=2), "pure")
    report = audit.loss(random, group_size=2)
    assert report.verdict is not Verdict.HOLDS
    torch.manual_seed(0)


def one_row_each(logp, adv, mask):
    return -(adv * total(logp, mask))


NOT_RUN = {
    "asks for what there is not": (
        lambda logp, advantages: logp.sum(),
        "asks for 'advantages'; it can have logp, logp_old",
    ),
    "returns a vector": (one_row_each, r"returned \(\d+,\); it must return one scalar"),
    "returns a number": (lambda logp: 1.0, "returned float"),
    "returns NaN": (lambda logp: logp.sum() * float("nan"), "the loss is nan on a batch that can be drawn"),
    "has no gradient": (lambda logp: logp.detach().sum(), "no gradient"),
    "does not use the policy": (lambda reward: reward.sum().requires_grad_(), "no gradient"),
    "ends the process": (lambda logp: exit(0), "raised SystemExit: 0"),
    "raises": (lambda logp: 1 / 0, "raised ZeroDivisionError: division by zero"),
}


@pytest.mark.parametrize("name", NOT_RUN)
def test_a_loss_that_cannot_be_run_is_a_verdict(name):
    function, message = NOT_RUN[name]
    report = audit.loss(function, group_size=2)
    assert report.verdict is Verdict.COULD_NOT_RUN and not report.holds
    assert report.ascends is None
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(str(report))


def claim_of(report, name):
    return next(claim for claim in report.claims if claim.name.startswith(name))


def test_binary_rewards_need_only_classes_in_large_groups():
    """A group of 8 of 15 responses is 319,770 multisets; reward, length and truncation make 5 classes of them."""
    easy = default_world()[:1]
    report = audit.loss(self_inclusive, group_size=8, world=easy)
    assert "classes" in report.exactness
    assert report.ascends.coefficients == pytest.approx({"reward": 7 / 8}, abs=1e-12)
    own = audit.loss(rloo, group_size=8, world=easy)
    assert own.holds and own.variance_ratio == pytest.approx(1.0, rel=1e-9)


def sampled_interval(claim):
    low, high = re.search(r"sampled, (\S+) to (\S+) x the stated gradient", claim.detail).groups()
    return float(low), float(high)


def test_past_the_budget_a_bias_is_found_by_sampling_and_its_absence_is_not_called_proof():
    hard = default_world()[1:]
    right = audit.loss(rloo, group_size=4, budget=100, world=hard)
    assert right.verdict is Verdict.COULD_NOT_RUN and right.ascends is None
    claim = claim_of(right, "I1")
    assert "sampling proves nothing" in claim.detail and "20,000 batches" in claim.exactness
    low, high = sampled_interval(claim)
    assert low < 1 < high
    wrong = claim_of(audit.loss(self_inclusive, group_size=4, budget=100, world=hard), "I1")
    assert wrong.verdict is Verdict.DISAGREES
    low, high = sampled_interval(wrong)
    assert low < 0.75 < high < 1


def test_where_one_problem_is_sampled_the_other_is_still_held_to_its_own_error():
    """The easy one goes by classes and is twice too large; the hard one is sampled and right."""

    def easy_twice(logp, adv, mask, reward):
        right = adv * total(logp, mask)
        return -(right * (2 if bool(((reward == 0) | (reward == 1)).all()) else 1)).mean()

    claim = claim_of(audit.loss(easy_twice, group_size=8, budget=1_000), "I1")
    assert claim.verdict is Verdict.DISAGREES
    assert "'easy, binary rewards': relative error 1.0e+00, enumerated" in claim.detail


def test_a_batch_of_both_problems_gives_the_mean_of_their_gradients():
    """Enumerating both groups of a batch jointly must agree with enumerating each alone, when the loss is a mean."""
    alone, joint = (audit.loss(self_inclusive, group_size=2, prompts=prompts) for prompts in (1, 2))
    assert joint.ascends.coefficients == pytest.approx(alone.ascends.coefficients, abs=1e-12)
    assert joint.variance == pytest.approx(alone.variance, rel=1e-10)


def test_groups_of_different_sizes_are_weighed_as_the_loss_weighs_them():
    """A mean over responses weighs a group of 4 twice as much as one of 2: 4/6 and 2/6 where 1/2 each was declared."""
    report = audit.loss(rloo, group_size=(4, 2), prompts=2, measure_curl=False)
    easy, hard = report.by_problem.values()
    assert easy.coefficients == pytest.approx({"reward": 2 * 4 / 6}, abs=1e-12)
    assert hard.coefficients == pytest.approx({"reward": 2 * 2 / 6}, abs=1e-12)
    assert claim_of(report, "I2").verdict is Verdict.DISAGREES, "the batch is not the mean of its groups"
    assert claim_of(audit.loss(rloo, group_size=(4, 2)), "I1").verdict is Verdict.HOLDS


def test_dynamic_sampling_scales_each_problem_by_its_chance_of_a_mixed_group():
    """Groups that are all right or all wrong are drawn again: the gradient is divided by 1 - p^G - (1 - p)^G."""
    easy = default_world()[:1]
    p, size = float((easy[0].sampler_logp.exp() * easy[0].reward).sum()), 3
    mixed = 1 - p**size - (1 - p) ** size
    report = audit.loss(rloo, group_size=size, world=easy, accept=lambda reward: bool(reward.min() < reward.max()))
    assert report.ascends.coefficients == pytest.approx({"reward": 1 / mixed}, rel=1e-12)


def test_another_advantage_can_be_put_in():
    def centred(reward, group):
        return reward - group_mean(reward, group)

    assert audit.loss(rloo, group_size=2).holds
    report = audit.loss(rloo, group_size=2, advantage=centred)
    assert report.ascends.coefficients == pytest.approx({"reward": 0.5}, abs=1e-12)

    refused = audit.loss(lambda logp, adv, mask: (adv * logp).sum(), advantage=lambda reward: reward.mean())
    assert "the advantage function returned ()" in str(refused)


def test_a_field_that_is_no_gradient_has_curl_and_a_reweighted_one_may_have_none():
    def own_length(logp, adv, mask):
        return -(adv * total(logp, mask) / mask.sum(1)).mean()

    assert audit.loss(own_length, group_size=2).curl.asymmetry > 1e-3

    def std_scaled(logp, reward, group, mask):
        centred = reward - group_mean(reward, group)
        return -(centred / (group_mean(centred.square(), group).sqrt() + 1e-4) * total(logp, mask)).mean()

    made = audit.loss(std_scaled, group_size=2, world=default_world())
    binary = audit.loss(std_scaled, group_size=4, world=tuple(_binary(problem) for problem in default_world()))
    assert made.curl is not None and binary.curl.asymmetry < 1e-6
    assert "weighed by its own factor" in binary.because


def _binary(problem):
    return dataclasses.replace(problem, reward=(problem.reward > 0.1).double())


def test_low_precision_is_said_and_sets_the_tolerance():
    def single(logp, adv, mask):
        return -(adv.float() * total(logp, mask).float()).mean()

    report = audit.loss(single, group_size=2)
    assert report.holds and "warning: it computes in float32" in claim_of(report, "precision").detail
    assert claim_of(report, "I1").tolerance == 1e-5
    assert all("precision" not in claim.name for claim in audit.loss(rloo, group_size=2).claims)


def test_a_loss_that_does_not_repeat_itself_has_a_verdict_of_its_own():
    calls = []

    def forgetful(logp, adv, mask):
        calls.append(None)
        return -(adv * total(logp, mask)).mean() * len(calls)

    report = audit.loss(forgetful, group_size=2)
    assert claim_of(report, "deterministic").verdict is Verdict.DISAGREES
    assert report.ascends is None


def test_the_order_of_a_group_is_a_verdict():
    def first_of_each_group_counts(logp, reward, group, mask):
        first = torch.tensor([i == 0 or group[i] != group[i - 1] for i in range(len(group))])
        return -(reward * total(logp, mask))[first].mean()

    report = audit.loss(first_of_each_group_counts, group_size=2)
    assert claim_of(report, "I4").verdict is Verdict.DISAGREES
    assert "order of a group" in claim_of(report, "I1").detail
    assert claim_of(report, "I1").verdict is Verdict.COULD_NOT_RUN


def test_a_wrong_loss_comes_with_its_worst_weight_its_smallest_group_and_its_remedy():
    report = audit.loss(self_inclusive, group_size=2)
    worst, smallest = claim_of(report, "I1").findings
    assert "logit of token" in worst and "after prefix [" in worst
    assert "[0] (reward 1) by [0.25], leave-one-out by [0.5]; [1, 0] (reward 0) by [-0.25, -0.25]" in smallest
    assert "the baseline contains its own sample" in str(report)
    assert "to mend it: subtract the mean of the other responses" in str(report)
    flipped = audit.loss(lambda logp, adv, mask: (adv * total(logp, mask)).mean(), group_size=2)
    assert "the sign is turned round" in str(flipped) and "return minus this loss" in str(flipped)


def test_a_wrong_question_is_an_error():
    with pytest.raises(InputError, match="no objective is called 'rewards'"):
        audit.loss(rloo, objective="rewards")
    with pytest.raises(InputError, match="expected a sum such as"):
        audit.loss(rloo, objective="reward * __import__('os')")
    with pytest.raises(InputError, match="group_size = 1"):
        audit.loss(rloo, group_size=1)


def test_a_report_does_not_depend_on_the_world_being_on_one_policy():
    """The identities hold in another world too: other weights, other rewards."""
    other = tuple(dataclasses.replace(problem, name=f"other {i}") for i, problem in enumerate(default_world(seed=5)))
    for function, expected in (
        (self_inclusive, {"reward": 0.5}),
        (k3_of_each_token_in_the_loss, {"frozen_forward_kl": -BETA}),
    ):
        made = audit.loss(function, group_size=2, world=other)
        assert made.ascends.coefficients == pytest.approx(expected, abs=1e-12)


def kl_stop(logp, logp_ref, adv, mask):
    """A batch whose mean log-ratio is large is skipped: seldom, and then no batch is the mean of its groups."""
    skipped = total(logp - logp_ref, mask).mean().detach() > 2.5
    return -(adv * total(logp, mask)).mean() * (0.0 if skipped else 1.0)


def forgets_the_mask_but_not_nan(logp, adv):
    return -(adv[:, None] * logp).nansum(1).mean()


def entropy_of_the_padding_too(logits):
    table = logits.log_softmax(-1)
    return -BETA * (-(table.exp() * table).sum(-1)).sum(1).mean()


def clips_the_reward(logp, reward, mask):
    return -(reward.clamp(0, 1) * total(logp, mask)).mean()


def takes_failure_for_nothing(logp, reward, group, mask):
    returns = reward.clamp(min=0)
    others = (group_mean(returns, group) * torch.bincount(group)[group] - returns) / (torch.bincount(group)[group] - 1)
    return -((returns - others) * total(logp, mask)).mean()


def takes_all_groups_for_equal(logp, reward, group, mask):
    size = len(reward) // (int(group.max()) + 1)
    others = (group_mean(reward, group) * torch.bincount(group)[group] - reward) / (size - 1)
    return -((reward - others) * total(logp, mask)).mean()


@pytest.mark.parametrize(
    ("function", "objective", "claim"),
    [
        (kl_stop, "reward", "I1"),
        (forgets_the_mask_but_not_nan, "reward", "I3"),
        (entropy_of_the_padding_too, "0.1*frozen_entropy", "I3"),
        (clips_the_reward, "reward", "I1"),
        (takes_failure_for_nothing, "reward", "I1"),
        (takes_all_groups_for_equal, "reward", "I4"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_shows_only_where_one_looks_is_looked_for(function, objective, claim):
    report = audit.loss(function, objective=objective, group_size=3 if function is kl_stop else 2, measure_curl=False)
    assert claim_of(report, claim).verdict is Verdict.DISAGREES, report


def test_every_member_of_a_class_is_tried_in_the_place_of_its_representative():
    """A loss that singles out one response among many of its class may not be enumerated by classes."""
    easy = default_world(seed=4)[:1]
    logp = easy[0].tree.token_logp(easy[0].logits).sum(1)
    for response in range(15):
        chosen = float(logp[response])

        def doubled(logp, adv, mask, chosen=chosen):
            own = total(logp, mask)
            twice = 1 + (own.detach() - chosen).abs().lt(1e-12).double()
            return -(twice * adv * own).mean()

        report = audit.loss(doubled, group_size=8, world=easy, measure_curl=False)
        singled = claim_of(report, "I1")
        alone_in_its_class = "classes" in report.exactness
        assert singled.verdict is Verdict.DISAGREES or "sampled" in singled.detail, (response, alone_in_its_class)


def test_a_small_loss_is_held_to_the_same_relative_tolerance():
    def weighed(logp, logp_ref, adv, mask):
        return -(1e-10 * (1 + (logp - logp_ref).detach().tanh().mean(1)) * adv * total(logp, mask)).mean()

    report = audit.loss(weighed, group_size=8, world=default_world()[:1])
    assert "sampled" in report.exactness, "it sees more than the class, however small it is"


def test_half_precision_shows_nothing_to_hold():
    def half(logp, adv, mask):
        return -(adv.bfloat16() * total(logp, mask) * 1.045).mean()

    report = audit.loss(half, group_size=2)
    assert report.verdict is Verdict.COULD_NOT_RUN
    assert "bfloat16, whose rounding hides" in claim_of(report, "precision").detail


def test_a_loss_that_changes_its_mind_later_is_found_out():
    calls = []

    def late(logp, adv, mask):
        calls.append(None)
        return -(adv * total(logp, mask)).mean() * (2 if len(calls) < 40 else 1)

    claim = claim_of(audit.loss(late, group_size=2), "deterministic")
    assert claim.verdict is Verdict.DISAGREES and "keeps a state" in claim.findings[0]


def test_a_random_gradient_under_a_steady_value_is_not_deterministic():
    generator = torch.Generator().manual_seed(0)

    def noise(logp, adv, mask):
        score = total(logp, mask)
        wobble = torch.rand(len(adv), dtype=torch.float64, generator=generator)
        return -(wobble * adv * (score - score.detach())).mean()

    assert claim_of(audit.loss(noise, group_size=2), "deterministic").verdict is Verdict.DISAGREES


def test_large_groups_of_few_classes_are_counted_without_overflow():
    easy = default_world()[:1]
    report = audit.loss(self_inclusive, group_size=32, world=easy, measure_curl=False)
    assert report.ascends.coefficients == pytest.approx({"reward": 31 / 32}, abs=1e-9)
    assert "joint calls checked on" in report.exactness
    beyond = audit.loss(rloo, group_size=171, world=easy, budget=10**12)
    assert beyond.verdict is Verdict.COULD_NOT_RUN and "sampled" in beyond.exactness


def test_what_a_loss_prints_and_switches_does_no_harm(capsys):
    def noisy(logp, adv, mask):
        print("in the loss")
        value = -(adv * total(logp, mask)).mean()
        torch.set_grad_enabled(False)
        return value

    with torch.no_grad():
        assert audit.loss(noisy, group_size=2).holds
    assert torch.is_grad_enabled() and capsys.readouterr().out == ""


class Module(torch.nn.Module):
    def forward(self, logp, adv, mask):
        return -(adv * total(logp, mask)).mean()


def changes_what_backward_needs(logp, adv, mask):
    value = (adv * total(logp, mask)).mean()
    adv.zero_()
    return -value


def test_losses_of_other_kinds_run_or_say_why_not():
    assert audit.loss(Module(), group_size=2).holds
    scaled = functools.partial(lambda logp, adv, mask, scale: -(scale * adv * total(logp, mask)).mean(), scale=2.0)
    assert audit.loss(scaled, objective="2*reward", group_size=2).holds
    for function, message in (
        (torch.exp, "does not say what it takes"),
        (changes_what_backward_needs, "the backward of the loss raised RuntimeError"),
        (lambda logp: torch.complex(logp, logp).sum(), "complex number"),
    ):
        report = audit.loss(function, group_size=2)
        assert report.verdict is Verdict.COULD_NOT_RUN and message in str(report)
    broken = audit.loss(rloo, group_size=2, accept=lambda reward: 1 / 0)
    assert "accept raised ZeroDivisionError" in str(broken)
    assert "asks for 'rewards'" in str(audit.loss(rloo, advantage=lambda rewards: rewards))


@pytest.mark.parametrize("objective", ["", "0*reward", "1e400*reward", "reward - reward"])
def test_an_objective_that_is_nothing_is_refused(objective):
    with pytest.raises(InputError, match="objective"):
        audit.loss(rloo, objective=objective)


def test_in_a_world_of_few_dimensions_nothing_is_explained_by_accident():
    single = small_world(tokens=2, max_length=1, end=None)[:1]

    def entropy(logits, mask):
        table = logits.log_softmax(-1)
        return -total(-(table.exp() * table).sum(-1), mask).mean()

    report = audit.loss(entropy, group_size=2, world=single)
    assert not report.ascends.exact, "one dimension: everything is a multiple of everything"
    assert audit.loss(rloo, group_size=2, world=single).holds


def test_a_mean_over_each_responses_own_tokens_is_explained_on_each_problem():
    """With leave-one-out: the reward over its length, less the expected reward times the inverse length."""

    def own_length(logp, adv, mask):
        return -(adv * total(logp, mask) / mask.sum(1)).mean()

    report = audit.loss(own_length, group_size=2)
    for problem, made in zip(default_world(), report.by_problem.values(), strict=True):
        value = float((problem.sampler_logp.exp() * problem.reward).sum())
        assert made.coefficients == pytest.approx({"reward_per_token": 1.0, "inverse_length": -value}, rel=1e-9)
    assert "divided by its own length" in report.because


def distinct_over_classes(logp, reward, adv, mask, truncated, tokens, group):
    """Tells apart how many different responses of one class stand in a group."""
    scale = torch.ones_like(adv)
    for number in range(int(group.max()) + 1):
        rows = (group == number).nonzero()[:, 0]
        responses = {(*tokens[row].tolist(), *mask[row].tolist()) for row in rows}
        classes = {(float(reward[row]), *mask[row].tolist(), bool(truncated[row])) for row in rows}
        scale[rows] = len(responses) / len(classes)
    return -(scale * adv * total(logp, mask)).mean()


def test_two_members_of_one_class_in_one_group_are_tried_together():
    """By response it disagrees at G = 3; by class it must not be enumerated, whatever it would give."""
    easy = default_world()[:1]
    assert claim_of(audit.loss(distinct_over_classes, group_size=3, world=easy, measure_curl=False), "I1").error > 1e-3
    for size in (8, 9):
        report = audit.loss(distinct_over_classes, group_size=size, world=easy, measure_curl=False, budget=3_000)
        assert "sampled" in report.exactness and not report.holds


def drops_groups_without_signal(logp, reward, adv, group, mask):
    """Means over the rows that are kept, so that a dropped group changes what the others get."""
    kept = [bool(reward[group == k].max() > reward[group == k].min()) for k in range(int(group.max()) + 1)]
    row = torch.tensor(kept)[group].double()
    return -(row * adv * total(logp, mask)).sum() / row.sum().clamp(min=1)


def turns_the_smaller_group_round(logp, adv, group, mask):
    sizes = torch.bincount(group)[group]
    sign = torch.where(sizes < sizes.max(), -1.0, 1.0)
    return -(sign * adv * total(logp, mask)).mean()


def drops_the_smaller_group(logp, adv, group, mask):
    sizes = torch.bincount(group)[group]
    return -((sizes == sizes.max()) * adv * total(logp, mask)).mean()


@pytest.mark.parametrize(
    ("function", "claim"),
    [(drops_groups_without_signal, "I2"), (turns_the_smaller_group_round, "I4"), (drops_the_smaller_group, "I4")],
)
def test_what_a_batch_does_to_its_groups_is_looked_for(function, claim):
    assert claim_of(audit.loss(function, group_size=2, measure_curl=False), claim).verdict is Verdict.DISAGREES


def test_worlds_and_sizes_that_cannot_be_are_refused():
    two = small_world()[:1] + small_world(tokens=2)[1:]
    with pytest.raises(InputError, match="vocabularies of different sizes"):
        audit.loss(rloo, world=two)
    for sizes in ((2, True), (1, 1), (2,)):
        with pytest.raises(InputError, match="group_size"):
            audit.loss(rloo, group_size=sizes)
    with torch.inference_mode():
        assert audit.loss(rloo, group_size=2).holds
