import functools

import pytest
import torch

from assay.audit.invariants.expected import expected_gradient
from assay.errors import InputError
from assay.tree.worlds import drifted_world, small_world
from assay.verdicts import Verdict

check = functools.partial(expected_gradient, world=small_world(tokens=2))


def total(logp, mask):
    return torch.where(mask > 0, logp, 0.0).sum(1)


def reinforce(logp, adv, mask):
    return -(adv * total(logp, mask)).mean()


def scaled(factor):
    return lambda logp, adv, mask: factor * reinforce(logp, adv, mask)


def test_the_error_is_the_one_that_the_loss_was_given():
    """A loss that ascends c times the objective is off by |1 - c|."""
    right = check(reinforce)
    assert right.verdict is Verdict.HOLDS and right.invariant == "I1"
    for factor in (0.75, -1.0, 3.0):
        made = check(scaled(factor))
        assert made.verdict is Verdict.DISAGREES and made.invariant == "I1" and made.findings
        assert made.error == pytest.approx(abs(1 - factor), rel=1e-9)
        assert check(scaled(factor), objective=f"{factor}*reward").verdict is Verdict.HOLDS


def test_it_is_the_expected_gradient_and_not_another_claim_that_is_asked():
    """A loss that depends on the padding's width is wrong elsewhere; where nothing is padded, it is right here."""

    def per_padded_position(logp, adv, mask):
        return 2 * reinforce(logp, adv, mask) / mask.shape[1]

    assert check(per_padded_position).verdict is Verdict.HOLDS


@pytest.mark.parametrize("advantage", ["positive", "negative"])
def test_a_loss_that_is_not_finite_on_a_group_that_can_be_drawn_disagrees(advantage):
    sign = {"positive": 1, "negative": -1}[advantage]

    def overflowing(logp, logp_ref, adv, mask):
        return reinforce(logp, adv, mask) + sign * total((logp_ref - logp).exp(), mask).mean()

    made = expected_gradient(overflowing, world=drifted_world())
    assert made.verdict is Verdict.DISAGREES and made.invariant == "I1"
    assert made.findings[0].endswith(f"the loss is {sign * float('inf')} on a batch that can be drawn")
    assert "responses [0], [2] with rewards" in made.findings[0], "the first group with the token that was given up"


def test_a_gradient_that_is_not_finite_disagrees_even_where_the_loss_is():
    def finite_value(logp, logp_ref, adv, mask):
        far = torch.minimum((logp_ref - logp).exp(), torch.ones_like(logp))
        return reinforce(logp, adv, mask) + 0 * total(far, mask).mean()

    made = expected_gradient(finite_value, world=drifted_world())
    assert made.verdict is Verdict.DISAGREES
    assert made.findings[0].endswith("the loss has a gradient that is not finite on a batch that can be drawn")


def test_not_finite_under_the_mask_alone_is_not_this_checks_matter():
    def spills(logp, adv, mask):
        return -(adv * (logp * mask).sum(1)).mean()

    assert check(spills).verdict is Verdict.HOLDS


CANNOT_RUN = {
    "asks for what there is not": (lambda logp, advantages: logp.sum(), "asks for 'advantages'"),
    "returns a vector": (lambda logp, adv: adv * logp.sum(1), "must return one scalar"),
    "raises": (lambda logp: 1 / 0, "raised ZeroDivisionError"),
    "says not what it takes": (dict, "does not say what it takes"),
    "takes only by position": (lambda logp, /: logp.sum(), "raised TypeError"),
    "raises where it is not finite": (lambda logp: [][0] if logp.isnan().any() else logp.detach().sum(), "no gradient"),
}


@pytest.mark.parametrize("name", CANNOT_RUN)
def test_a_loss_that_cannot_be_used_could_not_run(name):
    loss, reason = CANNOT_RUN[name]
    made = check(loss)
    assert made.verdict is Verdict.COULD_NOT_RUN and made.invariant == "I1"
    assert reason in made.detail


def test_a_wrong_question_is_an_error():
    with pytest.raises(InputError, match="no objective is called"):
        check(reinforce, objective="rewards")
