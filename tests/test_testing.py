"""The assertions that other people's test suites import."""

import pytest
import torch

from assay.audit.invariants import CHECKS, find_check
from assay.errors import InputError
from assay.testing import assert_invariant, assert_unbiased


def rloo(logp, adv, mask):
    return -(adv * torch.where(mask > 0, logp, 0.0).sum(1)).mean()


def twice(logp, adv, mask):
    return 2 * rloo(logp, adv, mask)


def centred(reward, group):
    sums = torch.zeros(int(group.max()) + 1, dtype=reward.dtype).index_add(0, group, reward)
    return reward - (sums / torch.bincount(group))[group]


def by_position(reward, group_size):
    return (reward.view(-1, group_size) - reward.view(-1, group_size).mean(1, keepdim=True)).flatten()


def over_the_batch(reward, group):
    return reward - reward.mean()


def test_a_right_loss_passes_and_hands_its_report_back():
    assert assert_unbiased(rloo, group_size=2).ascends.coefficients == pytest.approx({"reward": 1.0})
    assert_unbiased(twice, objective="2*reward", group_size=2)


def test_a_wrong_loss_fails_with_the_whole_report():
    with pytest.raises(AssertionError, match="disagrees  I1 expected gradient") as caught:
        assert_unbiased(twice, group_size=2)
    assert "ascends: 2 x gradient of reward" in str(caught.value)


def test_what_could_not_run_has_not_passed():
    with pytest.raises(AssertionError, match="could not run  runs: the loss asks for 'logps'"):
        assert_unbiased(lambda logps: logps.sum())
    with pytest.raises(AssertionError, match="could not run  I4 group semantics"):
        assert_invariant("I4", lambda wrong_name: wrong_name)


def test_an_advantage_function_is_enough_for_the_semantics_of_groups():
    assert assert_invariant("I4", centred).invariant == "I4"
    assert_invariant("group_semantics", by_position)
    with pytest.raises(AssertionError, match="disagrees  I4 group semantics"):
        assert_invariant("I4", over_the_batch)


def test_every_check_is_found_by_its_name_and_each_invariant_by_its_number():
    for number, checks in CHECKS.items():
        assert find_check(number) is checks[0]
        for check in checks:
            assert find_check(check.__name__) is check
    assert list(CHECKS) == [f"I{number}" for number in range(1, 15)]
    with pytest.raises(InputError, match="invariant 'I15': expected one of I1 expected_gradient, I2 partition"):
        assert_invariant("I15", None)
