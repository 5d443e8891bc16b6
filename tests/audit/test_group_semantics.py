"""I4 on advantage functions that are known to be right, and on each way to be wrong."""

import numpy as np
import pytest
import torch

from assay.audit.invariants.definitions import FORMS
from assay.audit.invariants.grouped import batch_of, mixed
from assay.audit.invariants.groups import group_semantics
from assay.core.advantages import leave_one_out, loo_advantages
from assay.verdicts import Verdict


def of_each_group(reward, group, formula):
    made = torch.zeros_like(reward)
    for name in set(group.tolist()):
        made[group == name] = formula(reward[group == name])
    return made


def spread(reward):
    return reward.std() if len(reward) > 1 else torch.zeros(())


def centred(reward, group):
    return of_each_group(reward, group, lambda r: r - r.mean())


def standardised(reward, group):
    return of_each_group(reward, group, lambda r: (r - r.mean()) / (spread(r) + 1e-4))


def best_against_second(reward, group):
    """The best response gets its lead over the second best, all others nothing."""

    def formula(r):
        order = r.sort(descending=True)
        made = torch.zeros_like(r)
        if len(r) > 1:
            made[order.indices[0]] = order.values[0] - order.values[1]
        return made

    return of_each_group(reward, group, formula)


def divided_by_the_mean(reward, group):
    return of_each_group(reward, group, lambda r: (r - r.mean()) / r.mean() if r.mean() > 0 else r * 0)


def whitened_over_the_batch(reward, group):
    made = centred(reward, group)
    return made / (made.std() + 1e-6)


def windows(reward, group_size):
    if len(reward) % group_size:
        raise ValueError("not whole groups")
    table = reward.view(-1, group_size)
    return (table - table.mean(1, keepdim=True)).flatten()


def medians(rewards, group):
    return of_each_group(rewards, group, lambda r: r - r.median())


RIGHT = [
    leave_one_out,
    loo_advantages,
    centred,
    standardised,
    best_against_second,
    divided_by_the_mean,
    windows,
    medians,
]


@pytest.mark.parametrize("function", RIGHT, ids=lambda function: function.__name__)
@pytest.mark.parametrize("binary", [False, True])
def test_what_is_right_by_its_own_definition_holds(function, binary):
    if binary and function is medians:
        pytest.skip("the median of a lone success among failures does not see it")
    found = group_semantics(function, binary=binary)
    assert found.verdict is Verdict.HOLDS, found


def test_a_refusal_is_named_and_is_no_disagreement():
    found = group_semantics(leave_one_out)
    assert found.verdict is Verdict.HOLDS and "refused: a lone response" in found.detail
    assert "uneven groups, a member short" in group_semantics(windows).detail


@pytest.mark.parametrize("size", [3, 4, 5, 8])
def test_definitions_are_what_they_say(size):
    """In sums over pairs: centred is Σ(r_i - r_j) / n, leave-one-out has n - 1 there, and the variance is
    Σ(r_i - r_j)² / (2 n (n - 1))."""
    reward = torch.linspace(0, 1, size, dtype=torch.float64).square()
    gaps = reward[:, None] - reward
    deviation = (gaps.square().sum() / (2 * size * (size - 1))).sqrt()
    pairs = {"centred": gaps.sum(1) / size, "leave-one-out": gaps.sum(1) / (size - 1)}
    pairs["standardised"] = pairs["centred"] / deviation
    for name, form in FORMS.items():
        torch.testing.assert_close(form(reward), pairs[name], rtol=1e-13, atol=1e-15)


def test_a_definition_is_compared_and_not_only_named():
    assert group_semantics(leave_one_out, definition="leave-one-out").verdict is Verdict.HOLDS
    assert group_semantics(centred, definition="centred").verdict is Verdict.HOLDS
    found = group_semantics(centred, definition="leave-one-out")
    assert found.verdict is Verdict.DISAGREES
    # 3 of 4 other members: centred is 3/4 of leave-one-out
    row = found.findings[0].split("has advantage ")[1].split(", by definition ")
    assert float(row[0]) == pytest.approx(0.75 * float(row[1]), rel=1e-4)
    assert group_semantics(standardised, definition="standardised").verdict is Verdict.DISAGREES, "its floor shows"
    with_floor = group_semantics(standardised, definition=lambda r: (r - r.mean()) / (r.std() + 1e-4))
    assert with_floor.verdict is Verdict.HOLDS


def test_whitening_over_the_batch_touches_other_groups_unless_it_is_declared():
    assert group_semantics(whitened_over_the_batch).verdict is Verdict.DISAGREES
    assert group_semantics(whitened_over_the_batch, scope="batch").verdict is Verdict.HOLDS


def stride(reward, group, group_size):
    full = len(reward) // group_size * group_size
    table = reward[:full].view(-1, group_size)
    return torch.cat([(table - table.mean(1, keepdim=True)).flatten(), reward[full:]])


def uncorrected_by_id_zero(reward, group):
    """Group 0 is shifted: the id changes the answer."""
    return centred(reward, group) + 0.01 * (group == 0) * (reward - reward[group == 0].mean())


def first_member(reward, group):
    return of_each_group(reward, group, lambda r: r - r[:1].mean())


def last_ignored(reward, group):
    return of_each_group(reward, group, lambda r: r - r[:-1].mean() if len(r) > 1 else r * 0)


def floored(floor):
    return lambda reward, group: of_each_group(reward, group, lambda r: (r - r.mean()) / (spread(r) + floor))


def noise_amplified(reward, group):
    """Seven times 0.95 has a float32 mean that is not 0.95, and a floor of 1e-8 makes an advantage of that."""
    return floored(1e-8)(reward, group)


def upside_down(reward, group):
    return -centred(reward, group)


def another_member_s(reward, group):
    return of_each_group(reward, group, lambda r: (r - r.mean())[r.argsort().roll(1).argsort()])


def upside_down_per_token(reward, group, mask):
    return -centred(reward, group)[:, None] * mask


def nan_for_lone(reward, group):
    return of_each_group(reward, group, lambda r: (r - r.mean()) / (len(r) - 1))


def by_text(reward, prompt_tokens):
    return centred(reward, prompt_tokens.unique(dim=0, return_inverse=True)[1])


def no_baseline(reward, group):
    return reward


def whole_batch(reward, group):
    return reward - reward.mean()


WRONG = [
    (stride, "rows in another order"),
    (uncorrected_by_id_zero, "ids exchanged"),
    (first_member, "does not count"),
    (last_ignored, "rows in another order"),
    (noise_amplified, "7 equal rewards of 0.95 in float32"),
    (upside_down, "of the same group, with the lower reward"),
    (upside_down_per_token, "of the same group, with the lower reward"),
    (another_member_s, "of the same group, with the lower reward"),
    (nan_for_lone, "a lone response: row 4 (reward 0.24, group 1 of [0.24]) has advantage nan"),
    (by_text, "one text asked twice"),
    (no_baseline, "does not count"),
    (whole_batch, "even groups"),
]


@pytest.mark.parametrize(("function", "witness"), WRONG, ids=lambda value: getattr(value, "__name__", ""))
def test_what_is_wrong_is_shown_by_the_property_it_breaks(function, witness):
    found = group_semantics(function)
    assert found.verdict is Verdict.DISAGREES
    assert any(witness in line for line in found.findings), found.findings
    assert found.remedy


def test_a_sign_can_be_declared_either_way():
    assert group_semantics(upside_down, monotone=False).verdict is Verdict.HOLDS
    assert group_semantics(upside_down, definition=lambda r: r.mean() - r).verdict is Verdict.HOLDS
    found = group_semantics(upside_down)
    assert len(found.findings) == 1, found.findings


@pytest.mark.parametrize(("floor", "place"), [(1e-4, "nowhere"), (1e-6, "detail"), (1e-8, "findings")])
def test_what_float32_leaves_of_a_constant_group_is_said_with_its_size(floor, place):
    """A constant group's mean misses 0.95 by less than a rounding, 0.95 * 2^-24; the deviation is about as large."""
    reward = torch.full((7,), 0.95)
    size = float(((reward - reward.mean()) / (reward.std() + floor)).abs().max())
    found = group_semantics(floored(floor))
    start = f"7 equal rewards of 0.95 in float32: row 0 (reward 0.95, group 0 of [{', '.join(['0.95'] * 7)}])"
    rest = f"{size:.6g}, the rounding of its rewards over a small floor: decide by max == min"
    said = {"detail": found.detail, "findings": "".join(found.findings)}
    for where, text in said.items():
        assert (start in text and rest in text) == (where == place), text
    assert found.verdict is (Verdict.DISAGREES if place == "findings" else Verdict.HOLDS)
    assert len(found.findings) == (place == "findings")


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (lambda r: 1 / 0, "the definition raised ZeroDivisionError"),
        (lambda r: r[:2], "the definition returned shape (2,) for 4 rewards"),
        (lambda r: None, "the definition returned NoneType"),
        (lambda r: r + 1j, "the definition returned Tensor; it must return a tensor [B] of real numbers"),
    ],
)
def test_a_definition_that_cannot_be_read_is_no_verdict(definition, reason):
    found = group_semantics(centred, definition=definition)
    assert found.verdict is Verdict.COULD_NOT_RUN and reason in found.detail


def test_the_witness_has_both_values():
    """The whole batch of even groups is centred by 0.515833..., its first group alone by its own mean."""
    found = group_semantics(whole_batch)
    line = next(line for line in found.findings if line.startswith("even groups"))
    row = int(line.split("row ")[1].split(" ")[0])
    levels = [[(0.13 + 0.37 * (3 * group + member)) % 1.0 for member in range(4)] for group in range(3)]
    reward = sum(levels, [])[row]
    together, alone = reward - sum(sum(levels, [])) / 12, reward - sum(levels[row // 4]) / 4
    made = line.split("has advantage ")[1].split(", alone ")
    assert [float(part) for part in made] == pytest.approx([together, alone], rel=1e-5)


def test_a_bound_can_be_stated():
    assert group_semantics(leave_one_out, bound=1.0).verdict is Verdict.HOLDS
    found = group_semantics(divided_by_the_mean, bound=1.0)
    assert "beyond 1" in found.findings[-1], "one success of three: (1 - 1/3) / (1/3) = 2"


def test_tables_tuples_lists_and_arrays_are_read():
    def per_token(reward, group, mask):
        made = centred(reward, group)[:, None].expand_as(mask).clone()
        made[mask == 0] = float("nan")
        return made, made

    def listed(reward, group):
        return centred(reward, group).tolist()

    def array(reward, group):
        return np.asarray(centred(reward, group))

    for function in (per_token, listed, array):
        found = group_semantics(function, definition="centred" if function is not array else None)
        assert found.verdict is Verdict.HOLDS, found


def test_inputs_that_are_written_over_do_not_reach_the_next_call():
    def in_place(reward, group):
        reward.mul_(2.0)
        return centred(reward, group) / 2.0

    assert group_semantics(in_place).verdict is Verdict.HOLDS


@pytest.mark.parametrize(
    ("function", "options", "reason"),
    [
        (lambda reward, index: reward, {}, "asks for 'index'"),
        (lambda reward: reward[:1], {}, "returned shape (1,)"),
        (lambda reward: "large", {}, "returned str"),
        (lambda reward: 1 / 0, {}, "ZeroDivisionError"),
        (centred, {"definition": "centered"}, "'centered'"),
        (centred, {"group_size": 2}, "group_size = 2"),
        (dict, {}, "the advantage function"),
    ],
)
def test_what_cannot_be_audited_says_why(function, options, reason):
    found = group_semantics(function, **options)
    assert found.verdict is Verdict.COULD_NOT_RUN and reason in found.detail


def test_an_order_of_rows_is_a_permutation_that_parts_neighbours():
    for count in (5, 8, 12):
        order = mixed(count).tolist()
        assert sorted(order) == list(range(count))
    rows = batch_of([[1.0, 2.0], [3.0]], 2)
    assert rows.group.tolist() == [0, 0, 1] and rows.alone(1)[0].tolist() == [2]
