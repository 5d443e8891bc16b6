"""Partition and mask specimens: what is filed is there, and the figures of the reports come out of the forms."""

import itertools

import pytest
import torch

from assay.audit.invariants.layouts import Layout, Rows, lay_out
from assay.audit.invariants.partition import accumulated
from specimens import accumulation, aggregation, attention, denominators, masked_credit, masks
from specimens.lists import read_list

BUGS = read_list()
FAMILIES = (accumulation, aggregation, attention, denominators, masked_credit, masks)
SPECIMENS = [made for family in FAMILIES for made in family.SPECIMENS]


def test_every_report_of_both_invariants_is_here_once():
    filed = {bug.id for bug in BUGS.values() if bug.invariant in ("I2", "I3")}
    assert sorted([made.bug for made in SPECIMENS] + list(attention.UNDECIDABLE)) == sorted(filed)
    assert [sum(BUGS[name].invariant == number for name in filed) for number in ("I2", "I3")] == [19, 25]


def test_every_wrong_form_comes_with_a_remedy():
    assert all(made.check(made.wrong).remedy for made in SPECIMENS)


def rows_of(lengths, adv):
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    logp = torch.full(mask.shape, -0.5, dtype=torch.double)
    group = torch.zeros(len(lengths), dtype=torch.long)
    return Rows(logp, logp, torch.tensor(adv, dtype=torch.double), mask, mask.sum(1), group)


def slope(step, rows, cells, **options):
    leaf = rows.logp.clone().requires_grad_()
    layout = Layout(cells, "micro-batches", rows.logp.shape[1], **options)
    return torch.autograd.grad(accumulated(step)(lay_out(layout, rows, leaf)), leaf)[0]


def test_lengths_1_and_3_with_opposite_advantages_cancel_in_parts():
    """The coefficient of one shared log-probability: (1 - 3) / 4 over all tokens, (1 - 1) / 2 over means of rows."""
    rows = rows_of([1, 3], [1.0, -1.0])
    for step in (aggregation.token_mean_of_micro_batch, aggregation.token_mean_of_window):
        assert float(-slope(step, rows, (((0, 1),),)).sum()) == pytest.approx((1 - 3) / 4)
    parts = (((0,), (1,)),)
    assert float(slope(aggregation.token_mean_of_micro_batch, rows, parts).sum()) == pytest.approx(0)
    assert float(-slope(aggregation.token_mean_of_window, rows, parts).sum()) == pytest.approx((1 - 3) / 4)


def test_32_micro_batches_make_an_auxiliary_term_32_times_too_large():
    rows = rows_of([2] * 32, [1.0] * 32)
    parts = (tuple((row,) for row in range(32)),)
    main = slope(aggregation.token_mean_with_the_count, rows, parts)
    wrong = slope(aggregation.positives_by_micro_batch, rows, parts) - main
    right = slope(aggregation.positives_by_window, rows, parts) - main
    assert torch.allclose(wrong / right, torch.full_like(right, 32.0), rtol=1e-12)


def test_a_rollout_for_twice_the_steps_halves_the_gradient():
    rows = rows_of([1, 3], [1.0, -1.0])
    once = slope(accumulation.over_tokens_of_rollout, rows, (((0, 1),),))
    twice = slope(accumulation.over_tokens_of_rollout, rows, (((0, 1),),), steps=2)
    assert torch.equal(twice, once / 2)


def test_two_micro_batches_of_four_configured_give_half():
    rows = rows_of([1, 3], [1.0, -1.0])
    parts = (((0,), (1,)),)
    right = slope(accumulation.over_steps_taken, rows, parts, planned=4)
    assert torch.equal(slope(accumulation.over_configured_steps, rows, parts, planned=4), right / 2)


def test_two_token_means_are_not_one():
    """Groups with sums 1 and 2 over 1 and 4 tokens: (1/1 + 2/4) / 2 against 3 / 5."""
    rows = rows_of([1, 4], [1.0, 0.5])
    rows = Rows(rows.logp, rows.logp_old, rows.adv, rows.mask, rows.length, torch.tensor([0, 1]))
    whole = (((0, 1),),)
    assert float(-slope(aggregation.token_mean_of_groups, rows, whole).sum()) == pytest.approx((1 / 1 + 2 / 4) / 2)
    assert float(-slope(aggregation.token_mean_with_the_count, rows, whole).sum()) == pytest.approx(3 / 5)


def test_a_reward_on_a_rejected_token():
    """Scores 1 and 0 lie half their distance from the mean: over the standard deviation, 1 / sqrt 2."""
    mask = torch.tensor([[True, False], [True, True]])
    reward, group = torch.tensor([[0.0, 1.0], [0.0, 0.0]]).double(), torch.tensor([0, 0])
    apart = 0.5**0.5
    made = masked_credit.score_of_every_position(reward, mask, group)
    assert torch.allclose(made, torch.tensor([[apart, 0], [-apart, -apart]]).double(), atol=1e-5)
    assert not masked_credit.score_of_unmasked_positions(reward, mask, group).any()


def test_a_row_without_action_in_the_mean():
    case = {"score": torch.tensor([100.0, 1.0]).double(), "mask": torch.tensor([[False, False], [True, True]])}
    case["group"] = torch.tensor([0, 0])
    assert masked_credit.rows_without_action_in_mean(**case)[1].tolist() == [1 - 101 / 2] * 2
    assert masked_credit.rows_without_action_left_out(**case)[1].tolist() == [0.0, 0.0]


def test_the_kl_of_observations_in_returns():
    kl, mask = torch.ones(1, 4).double(), torch.tensor([[True, False, False, True]])
    all_of_it = masked_credit.returns_with_kl_of_observations(kl, mask)[0, 0]
    assert float(all_of_it) == pytest.approx(-(1 + 0.9 + 0.9**2 + 0.9**3))
    assert float(masked_credit.returns_with_kl_of_actions(kl, mask)[0, 0]) == pytest.approx(-(1 + 0.9**3))


def test_padding_in_rewards_to_go():
    reward, labels = torch.tensor([[1.5, 1, 2, 2]]).double(), torch.tensor([[5, 6, -100, -100]])
    assert masked_credit.mask_from_inputs(reward, labels.clamp(min=0), labels).tolist() == [[6.5, 5, 4, 2]]
    assert masked_credit.mask_from_labels(reward, labels.clamp(min=0), labels).tolist() == [[2.5, 1, 0, 0]]


def test_three_of_five_tokens_rejected_leave_two_fifths():
    logp = torch.full((1, 5), -0.5, dtype=torch.double, requires_grad=True)
    given = {
        "adv": torch.ones(1).double(),
        "mask": torch.ones(1, 5, dtype=torch.bool),
        "kept": torch.tensor([[True, False, True, False, False]]),
    }
    wrong, right = (
        torch.autograd.grad(form(logp, **given), logp)[0]
        for form in (denominators.rejected_by_weight, denominators.rejected_by_mask)
    )
    assert torch.allclose(wrong, 0.4 * right, rtol=1e-12) and right.any()


def test_a_template_that_merges_tool_results():
    """Two results in one user turn: the boundary between two turns would be four tokens, the merged one has one."""
    tokens, _ = masks.whole_conversation(masks.TALK)
    apart, _ = masks.each_message_alone(masks.TALK)
    assert tokens.tolist() == [masks.SEEN] and apart.shape[1] == tokens.shape[1] + 3
    unmerged = [message for message in masks.TALK if message[0] != masks.RESULT]
    assert torch.equal(masks.whole_conversation(unmerged)[0], masks.each_message_alone(unmerged)[0])


def test_an_index_of_minus_one_is_no_row_left_in_the_statistics():
    """Scores 10, 0, 1 of 0, 2, 3 tokens: at index -1 of three columns a score is discounted twice."""
    wrong = masked_credit.placed_before_an_empty_start(**masked_credit.ONE_GROUP)
    right = masked_credit.placed_where_there_is_a_token(**masked_credit.ONE_GROUP)
    twice = masked_credit.DISCOUNT**2
    assert float(wrong[2, 0]) == pytest.approx(twice - (10 * twice + 0 + twice) / 3)
    assert float(right[2, 0]) == pytest.approx(twice - (0 + 0 + twice) / 3)


def test_no_two_reports_share_both_forms_but_those_that_were_the_same_mistake():
    forms = [(made.wrong, made.right) for made in SPECIMENS]
    twice = {made.bug for made in SPECIMENS if forms.count((made.wrong, made.right)) > 1}
    assert twice == {"GA-03", "X-12"}
    case = masked_credit.ONE_GROUP
    outputs = [
        form(**case)
        for form in (
            masked_credit.placed_before_an_empty_start,
            masked_credit.rejected_rows_in_statistics,
            masked_credit.rows_without_action_in_mean,
        )
    ]
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(outputs, 2))


def test_a_closing_with_the_right_numbers_still_shows_the_mask():
    [made] = [made for made in masks.SPECIMENS if made.bug == "MASK-13"]
    findings = made.check(made.wrong).findings
    assert findings[0] == ("record 0, row 0, position 4: token 3 is in the mask, and the policy did not sample it")
    assert findings[-1].startswith("record 1: the tokens are")


def test_a_reward_under_the_mask_is_what_is_shown():
    [made] = [made for made in masked_credit.SPECIMENS if made.bug == "ADV-10"]
    assert made.check(made.wrong).findings[0].startswith("with 7 under the mask of reward: output at row ")
