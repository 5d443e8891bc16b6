"""What waits in a buffer keeps its prompt and its denominator: loops that buffer, right and wrong."""

import itertools

import pytest
import torch

from assay.audit.check import SubjectError
from assay.audit.invariants.buffering import LENGTH, VOCABULARY, Signed, Trained, buffered
from assay.verdicts import Verdict

PROMPTS = torch.tensor([[0, 1], [2, 3], [4, 4]])


def on_policy(policy):
    for prompt in PROMPTS:
        yield Trained(prompt, *policy.draw(prompt))
        policy.update()


def several_epochs(policy):
    """Draw a batch, then take two epochs of updates on parts of it, against log-probs taken once."""
    for prompt in PROMPTS:
        response, _ = policy.draw(prompt)
        old = policy.score(prompt, response)
        for _, row in itertools.product(range(2), ([1], [0])):
            yield Trained(prompt[row], response[row], old[row])
            policy.update()


def behind(make):
    """A loop in which each batch waits for one update; ``make`` says what is divided by, and the weight."""

    def loop(policy):
        waiting = [(prompt, *policy.draw(prompt)) for prompt in PROMPTS[:1]]
        for prompt in PROMPTS[1:]:
            waiting.append((prompt, *policy.draw(prompt)))
            rows = waiting.pop(0)
            yield Trained(rows[0], rows[1], *make(policy, *rows))
            policy.update()

    return loop


def as_drawn(policy, prompt, response, logp):
    return (logp,)


def as_of_now(policy, prompt, response, logp):
    return (policy.score(prompt, response),)


def weighted(policy, prompt, response, logp):
    """Decoupled: the ratio divides by the weights of now, the weight corrects from what drew."""
    now = policy.score(prompt, response)
    return now, (now - logp).exp()


def weighted_upside_down(policy, prompt, response, logp):
    now = policy.score(prompt, response)
    return now, (logp - now).exp()


@pytest.mark.parametrize(
    ("loop", "uses"), [(on_policy, 1), (several_epochs, 2), (behind(as_drawn), None), (behind(weighted), None)]
)
def test_loops_that_keep_what_a_response_was_drawn_with_hold(loop, uses):
    check = buffered(loop, uses=uses)
    assert check.verdict is Verdict.HOLDS and check.invariant == "I7", check
    assert "6 draws" in check.exactness


@pytest.mark.parametrize("make", [as_of_now, weighted_upside_down])
def test_a_denominator_of_other_weights_is_stale(make):
    check = buffered(behind(make))
    assert check.verdict is Verdict.DISAGREES and "drawn at version 0" in check.findings[0]
    assert all(finding.startswith("update 1") for finding in check.findings), "the first is trained before any update"


def test_the_witness_has_both_log_probs():
    policy = Signed()
    response, logp = policy.draw(PROMPTS[0])
    again, later = policy.draw(PROMPTS[1])
    policy.update()
    now = policy.score(PROMPTS[1], again)
    check = buffered(behind(as_of_now))
    expected = f"log-probs summing to {float(later[0].sum()):.6g}, divided by {float(now[0].sum()):.6g} at version 1"
    assert expected in check.findings[0]


def one_token_off(policy, prompt, response, logp):
    return (logp + torch.tensor([0.0, 1e-6, 0.0]),)


def test_one_token_with_another_denominator_is_enough():
    assert buffered(behind(one_token_off)).verdict is Verdict.DISAGREES
    assert buffered(behind(one_token_off), tolerance=1e-5).verdict is Verdict.HOLDS


def test_a_response_under_another_prompt_is_misplaced():
    def loop(policy):
        response, logp = policy.draw(torch.tensor([3, 5]))
        yield Trained(torch.tensor([5, 5]), response, logp)

    assert buffered(loop).findings == ("update 0, row 0: a response to prompt 3 is paired with 5",)


def test_a_draw_that_is_not_used_as_often_as_it_should_be_is_named():
    def loop(policy):
        response, logp = policy.draw(torch.tensor([3, 5]))
        yield Trained(torch.tensor([3]), response[:1], logp[:1])
        policy.update()

    assert buffered(loop).verdict is Verdict.HOLDS
    assert buffered(loop, uses=1).findings == ("draw 1, for prompt 5: trained on 0 times, not 1",)


def test_signed_policies_are_distributions_that_every_update_moves():
    policy, every = Signed(), torch.cartesian_prod(*[torch.arange(VOCABULARY)] * LENGTH)
    prompt = torch.full((len(every),), 2)
    first = policy.score(prompt, every).sum(1)
    policy.update()
    second = policy.score(prompt, every).sum(1)
    assert float(first.exp().sum()) == pytest.approx(1.0) and float(second.exp().sum()) == pytest.approx(1.0)
    assert float((first - second).abs().max()) > 0.1


def test_every_draw_is_another_response():
    policy = Signed()
    drawn = [tuple(row.tolist()) for _ in range(64) for row in policy.draw(torch.arange(8))[0]]
    assert len(set(drawn)) == VOCABULARY**LENGTH
    with pytest.raises(SubjectError, match="more than 512"):
        policy.draw(torch.tensor([0]))


def never_updates(policy):
    """Divide by the weights of now: it cannot show while they stand still."""
    for prompt in PROMPTS:
        response, _ = policy.draw(prompt)
        yield Trained(prompt, response, policy.score(prompt, response))


def never_ends(policy):
    response, logp = policy.draw(PROMPTS[0])
    while True:
        policy.update()
        yield Trained(PROMPTS[0], response, logp)


def yielding(**parts):
    def loop(policy):
        response, logp = policy.draw(PROMPTS[0])
        rows = Trained(PROMPTS[0], response, logp)
        for name, made in parts.items():
            object.__setattr__(rows, name, made)
        yield rows
        policy.update()

    return loop


def in_float32(policy, prompt, response, logp):
    return (logp.float(),)


def test_float32_is_allowed_its_own_roundings():
    made = buffered(behind(in_float32))
    assert made.verdict is Verdict.HOLDS and 1e-9 < made.error < 1e-6 and made.tolerance == 1e-5, made
    stale = buffered(behind(lambda policy, *rows: (policy.score(*rows[:2]).float(),)))
    assert stale.verdict is Verdict.DISAGREES


def test_not_a_number_is_no_denominator():
    for place in ("logp_old", "weight"):
        made = buffered(yielding(**{place: torch.full((2, 3), float("nan")).double()}))
        assert made.verdict is Verdict.DISAGREES and len(made.findings) == 2


def raises_late(policy):
    yield from itertools.islice(on_policy(policy), 1)
    raise RuntimeError("queue closed")


def invents(policy):
    policy.draw(torch.tensor([0]))
    yield Trained(torch.tensor([0]), torch.tensor([[7, 7, 7]]), torch.zeros(1, 3).double())


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (lambda policy: iter(()), "made no update"),
        (lambda policy: None, "TypeError"),
        (raises_late, "the loop raised RuntimeError: queue closed"),
        (invents, "trains on tokens [7, 7, 7], which nobody drew"),
        (lambda policy: iter([("a", "b")]), "the loop yielded tuple"),
        (never_updates, "the loop never calls update"),
        (never_ends, "the loop makes more than 2048 updates"),
        (yielding(prompt=None), "the loop yielded a prompt of NoneType; need a tensor of whole numbers"),
        (yielding(prompt=torch.tensor(0)), "the loop yielded a prompt of shape ()"),
        (yielding(prompt=torch.zeros(2)), "the loop yielded a prompt of float32"),
        (yielding(response=torch.zeros(2, 3)), "the loop yielded a response of float32"),
        (yielding(response=torch.tensor(1)), "the loop yielded a response of shape ()"),
        (yielding(response=torch.tensor([[-8, 1, 0], [0, 0, 0]])), "trains on tokens [-8, 1, 0], which nobody drew"),
        (yielding(response=torch.tensor([[8, 0, 0], [0, 0, 0]])), "trains on tokens [8, 0, 0], which nobody drew"),
        (yielding(logp_old=[0.0]), "the loop yielded a logp_old of list; need a tensor of real numbers"),
        (yielding(weight=torch.ones(2, 1).double()), "the loop yielded a weight of shape (2, 1)"),
    ],
)
def test_a_loop_that_cannot_be_audited_is_no_verdict_on_it(loop, message):
    check = buffered(loop)
    assert check.verdict is Verdict.COULD_NOT_RUN and message in check.detail, check
