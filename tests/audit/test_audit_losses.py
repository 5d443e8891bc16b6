"""The audit against what is known of these losses on paper: identities that hold for every policy and world."""

import dataclasses
import math

import pytest
import torch

from assay import audit
from assay.errors import InputError
from assay.tree.world import default_world
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
    report = audit.loss(function, group_size=3)
    assert report.ascends.coefficients == pytest.approx(expected, abs=1e-12)
    assert report.ascends.exact
    stated = " + ".join(f"{value!r}*{name}" for name, value in expected.items()).replace("+ -", "- ")
    if expected:
        assert audit.loss(function, objective=stated, group_size=3).holds
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
    assert report.by_problem[easy.name].coefficients == pytest.approx({"reward": factor}, rel=1e-10)
    assert report.by_problem[easy.name].exact
    assert not report.by_problem[hard.name].exact, "graded rewards have no such factor"
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

    verdicts = {claim.name: claim.verdict for claim in audit.loss(token_mean, group_size=2).claims}
    assert verdicts["I2 partition"] is Verdict.DISAGREES
    assert verdicts["I4 order of rows"] is Verdict.HOLDS


def test_off_policy_the_ratio_of_the_whole_response_is_exact_and_none_is_not():
    world = default_world(off_policy=True)

    def whole_ratio(logp, logp_old, reward, mask):
        ratio = total(logp - logp_old, mask).exp()
        return -(ratio * reward).mean()

    assert audit.loss(whole_ratio, group_size=2, world=world).holds
    stale = audit.loss(plain_reinforce, group_size=2, world=world)
    assert stale.verdict is Verdict.DISAGREES and not stale.ascends.exact


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

    assert "row" in fault(audit.loss(groups_by_position, group_size=2), "I4 order of rows")


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
    "returns NaN": (lambda logp: logp.sum() * float("nan"), "the loss is nan on a batch of ordinary numbers"),
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


def test_a_tree_beyond_the_budget_is_a_verdict():
    report = audit.loss(rloo, group_size=10)
    assert report.verdict is Verdict.COULD_NOT_RUN
    assert "more than the budget" in str(report)


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
