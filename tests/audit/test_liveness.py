import functools
import sys

import pytest
import torch

from assay.audit.invariants.liveness import liveness
from assay.tree.world import default_world
from assay.tree.worlds import far_world
from assay.verdicts import Verdict


def total(values, mask):
    return torch.where(mask > 0, values, 0.0).sum(1)


def clipped(*, epsilon=0.2, epsilon_high=None, delta=None, beta=0.0, kl="k2"):
    """Build a clipped loss of which every option is live, once beta is set."""
    if kl not in ("k2", "k3"):
        raise ValueError(f"kl = {kl!r}: expected k2 or k3")

    def loss(logp, logp_old, logp_ref, adv, mask):
        ratio, a = (logp - logp_old).exp(), adv[:, None]
        plain = ratio if delta is None else ratio.clamp(max=delta)
        high = epsilon if epsilon_high is None else epsilon_high
        terms = torch.minimum(plain * a, ratio.clamp(1 - epsilon, 1 + high) * a)
        gap = logp_ref - logp
        penalty = gap.square() / 2 if kl == "k2" else gap.exp() - 1 - gap
        return -total(terms - beta * penalty, mask).mean()

    return loss


MOVED = {"epsilon": 0.4, "epsilon_high": 0.28, "delta": 4.0, "beta": 0.04}


def test_options_that_act_hold():
    made = liveness(clipped, MOVED)
    assert made.verdict is Verdict.HOLDS, made.findings
    assert made.invariant == "I5" and made.detail.startswith("epsilon, epsilon_high, delta, beta moved one at a time")


def test_an_option_can_need_another_one():
    """The form of a KL term does nothing while its coefficient is zero."""
    inert = liveness(clipped, {"kl": "k3"})
    assert inert.findings == ("kl = 'k3' changes neither the loss's value nor its gradient on any batch",)
    assert liveness(clipped, {"kl": "k3"}, given={"beta": 0.04}).verdict is Verdict.HOLDS


def test_given_options_stay_in_force_while_another_moves():
    """An inert option changes nothing, unless what was given is lost on the way."""

    def with_an_inert_one(*, inert=0, **options):
        return clipped(**options)

    found = liveness(with_an_inert_one, {"inert": 1}, given={"beta": 0.04})
    assert found.findings[0] == "inert = 1 changes neither the loss's value nor its gradient on any batch"


@pytest.mark.parametrize(
    ("options", "given"),
    [({"beta": 0.0}, {}), ({"beta": 0.1}, {"beta": 0.1}), ({"epsilon": 0.4, "kl": "k2"}, {}), ({"delta": None}, {})],
)
def test_an_option_that_is_moved_to_what_it_is_could_not_run(options, given):
    made = liveness(clipped, options, given=given)
    name, value = list(options.items())[-1]
    assert made.verdict is Verdict.COULD_NOT_RUN
    assert made.detail == f"{name} is moved to {value!r}, the value that it has; name another one"


def test_an_inert_option_in_a_loss_that_draws_is_not_taken_for_a_live_one():
    generator = torch.Generator().manual_seed(0)

    def noisy(*, inert=0.1):
        return lambda logp, adv, mask: -(adv * total(logp, mask)).mean() * (1 + torch.rand((), generator=generator))

    made = liveness(noisy, {"inert": 0.2})
    assert made.verdict is Verdict.COULD_NOT_RUN and "fix its random numbers" in made.detail


def test_a_clip_has_nothing_to_act_on_where_the_ratio_is_one():
    assert liveness(clipped, {"epsilon": 0.4}, world=default_world()).verdict is Verdict.DISAGREES
    assert liveness(clipped, {"epsilon": 0.4}, world=far_world()).verdict is Verdict.HOLDS


def test_a_refused_option_is_not_inert():
    made = liveness(clipped, {"kl": "k4"}, given={"beta": 0.04})
    assert made.verdict is Verdict.HOLDS and (
        made.detail == "kl moved one at a time; refused: kl (ValueError: kl = 'k4': expected k2 or k3)"
    )


def test_a_coefficient_must_reach_the_gradient_and_not_the_value_alone():
    def detached(*, beta=0.1):
        return lambda logp, logp_ref, adv, mask: (
            -(adv * total(logp, mask)).mean() + beta * total(logp - logp_ref, mask).mean().detach()
        )

    made = liveness(detached, {"beta": 0.2})
    assert made.verdict is Verdict.DISAGREES and made.remedy
    assert made.findings[0].startswith("beta = 0.2 changes the loss's value (")
    assert made.findings[0].endswith("and no gradient")


def test_an_unknown_option_must_not_be_swallowed():
    def generous(*, epsilon=0.2, **rest):
        return clipped(epsilon=epsilon)

    made = liveness(generous, {"epsilon": 0.4})
    assert made.verdict is Verdict.DISAGREES and "'no_such_option' is accepted" in made.findings[0]

    def ends_the_process(*, epsilon=0.2, **rest):
        return sys.exit(2) if rest else clipped(epsilon=epsilon)

    assert liveness(ends_the_process, {"epsilon": 0.4}).verdict is Verdict.HOLDS
    misspelt = liveness(generous, {"epsilon_hi": 0.28})
    assert len(misspelt.findings) == 2 and misspelt.findings[0].startswith("epsilon_hi = 0.28 changes neither")


def test_rounding_is_no_change():
    def nearly(*, tiny=0.0):
        return lambda logp, adv, mask: -(adv * total(logp, mask)).mean() * (1 + tiny)

    assert liveness(nearly, {"tiny": 1e-12}).verdict is Verdict.DISAGREES
    assert liveness(nearly, {"tiny": 1e-6}).verdict is Verdict.HOLDS


def test_one_batch_on_which_it_acts_is_enough():
    """Every response is tried, so an option that touches one alone is live."""

    def dropping(*, response=()):
        def loss(logp, adv, mask, tokens):
            keep = (tokens != torch.tensor(response)).any(1) if response else torch.ones(len(adv)).bool()
            return -(keep * adv * total(logp, mask)).mean()

        return loss

    for problem in far_world():
        for response in problem.tree.responses.tolist():
            assert liveness(dropping, {"response": tuple(response)}).verdict is Verdict.HOLDS


def crashing(*, beta=0.1):
    return clipped(beta=1 / (0.2 - beta))


def failing_later(*, beta=0.1):
    return clipped(beta=beta) if beta < 0.2 else lambda logp: logp.sum() * float("nan")


CANNOT_RUN = {
    "no option": (clipped, {}, "no option to move"),
    "the given options are refused": (functools.partial(clipped, kl="k9"), {"beta": 0.1}, "raised ValueError"),
    "the maker crashes": (crashing, {"beta": 0.2}, "raised ZeroDivisionError"),
    "the moved loss is not finite": (failing_later, {"beta": 0.2}, "the loss is nan"),
    "the maker leaves": (lambda beta=0.1: sys.exit(3) if beta > 0.1 else clipped(), {"beta": 0.2}, "raised SystemExit"),
    "the maker makes no loss": (lambda beta=0.1: 3.0, {"beta": 0.2}, "the maker of the loss returned float"),
    "the moved loss is none": (lambda beta=0.1: clipped() if beta < 0.2 else None, {"beta": 0.2}, "returned NoneType"),
    "the loss does not say what it takes": (lambda beta=0.1: max, {"beta": 0.2}, "what the loss asks for"),
    "the values cannot be compared": (
        lambda w=1.0: clipped(),
        {"w": torch.ones(2)},
        "comparing two values of w",
    ),
    "the loss asks for what there is not": (lambda beta=0.1: lambda logits_x: 0, {"beta": 1.0}, "asks for 'logits_x'"),
}


@pytest.mark.parametrize("name", CANNOT_RUN)
def test_what_cannot_be_tried_could_not_run(name):
    make, options, reason = CANNOT_RUN[name]
    made = liveness(make, options)
    assert made.verdict is Verdict.COULD_NOT_RUN and made.invariant == "I5"
    assert reason in made.detail
