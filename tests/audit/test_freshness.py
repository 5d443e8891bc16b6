"""Does the sampler draw with the weights that are trained? A transformer and a low-rank adapter, delivered or not."""

import pytest
import torch

from assay.audit.invariants.freshness import Pair, freshness
from assay.policies.transformer import TinyTransformer
from assay.verdicts import Verdict

V = 3
NAMES = [
    name
    for name, _ in TinyTransformer(
        vocabulary=V + 1, responses=V, context=4, width=4, heads=2, feedforward=8, seed=0
    ).named_parameters()
]


def transformer(dtype=torch.float64):
    return TinyTransformer(
        vocabulary=V + 1, responses=V, context=4, width=4, heads=2, feedforward=8, seed=0, dtype=dtype
    )


def score_with(policy):
    """Score responses to the prompt of one token, V."""

    def score(tokens):
        read = torch.cat([torch.full_like(tokens[:, :1], V), tokens[:, :-1]], dim=1)
        return policy(read).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]

    return score


def pair_of(sync, *, sampler=None, version=None):
    trained, sampler = transformer(), sampler or transformer()
    return Pair(
        dict(trained.named_parameters()),
        lambda: sync(trained, sampler),
        score_with(trained),
        score_with(sampler),
        version,
    )


def copy_all(trained, sampler):
    sampler.load_state_dict(trained.state_dict())


def test_weights_that_are_copied_are_fresh_and_left_as_they_were():
    pair = pair_of(copy_all)
    before = {name: weight.detach().clone() for name, weight in pair.weights.items()}
    check = freshness(pair)
    assert check.verdict is Verdict.HOLDS and check.invariant == "I7" and check.error == 0.0
    assert "9 responses, 17 trained tensors" in check.exactness
    assert all(torch.equal(weight, before[name]) for name, weight in pair.weights.items())
    tokens = torch.tensor([[0, 1], [2, 2]])
    assert torch.equal(pair.sampler_logp(tokens), pair.trained_logp(tokens)), "synced again at the end"


@pytest.mark.parametrize("left_out", NAMES)
def test_a_tensor_that_is_left_out_is_the_one_that_is_named(left_out):
    def sync(trained, sampler):
        kept = dict(sampler.named_parameters())[left_out].detach().clone()
        copy_all(trained, sampler)
        dict(sampler.named_parameters())[left_out].data.copy_(kept)

    check = freshness(pair_of(sync))
    assert check.verdict is Verdict.DISAGREES
    lost = [finding for finding in check.findings if "never reaches" in finding]
    assert [finding.split()[0] for finding in lost] == [left_out] and check.findings[0] == lost[0]


def test_weights_that_arrive_one_sync_late_are_stale():
    waiting = []

    def sync(trained, sampler):
        waiting.append({name: weight.clone() for name, weight in trained.state_dict().items()})
        sampler.load_state_dict(waiting[-2] if len(waiting) > 1 else transformer().state_dict())

    check = freshness(pair_of(sync))
    assert check.verdict is Verdict.DISAGREES
    assert check.error == pytest.approx(1.0), "the sampler did not move, so it is off by all that the trainer moved"
    assert len(check.findings) == 1 and check.findings[0].startswith("all tensors moved and synced")


class Adapter:
    """A frozen table of logits, and a low-rank adapter whose second factor is zero at the start."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.base, self.a = (torch.randn(V, n, generator=generator, dtype=torch.float64) for n in (V, 2))
        self.b = torch.zeros(2, V, dtype=torch.float64)

    def logp(self, table):
        return lambda tokens: table()[tokens.roll(1, dims=1)].log_softmax(-1).gather(-1, tokens[..., None])[..., 0]

    def pair(self, delivered):
        held = {"table": self.base.clone()}

        def sync():
            held["table"] = delivered(self)

        trained = self.logp(lambda: self.base + self.a @ self.b)
        return Pair({"a": self.a, "b": self.b}, sync, trained, self.logp(lambda: held["table"]))


def test_an_adapter_is_delivered_whole():
    assert freshness(Adapter().pair(lambda made: made.base + made.a @ made.b)).verdict is Verdict.HOLDS
    assert freshness(Adapter().pair(lambda made: made.base.clone())).verdict is Verdict.DISAGREES
    first = Adapter().a.clone()
    check = freshness(Adapter().pair(lambda made: made.base + first @ made.b))
    assert [finding.split()[0] for finding in check.findings if "never reaches" in finding] == ["a"]
    twice = freshness(Adapter().pair(lambda made: made.base + 2 * made.a @ made.b))
    assert twice.verdict is Verdict.DISAGREES and not any("never" in finding for finding in twice.findings)


@pytest.mark.parametrize(
    ("delivers", "counts", "finding"),
    [
        (True, True, None),
        (False, True, "from version 0: the weights are not delivered, and the version advances to 1"),
        (True, False, "from version 0: the weights are delivered, and the version stays 0"),
    ],
)
def test_a_version_advances_with_a_delivery_and_only_then(delivers, counts, finding):
    count = {"version": 0}

    def sync(trained, sampler):
        if delivers:
            copy_all(trained, sampler)
        count["version"] += counts

    check = freshness(pair_of(sync, version=lambda: count["version"]))
    assert (check.verdict is Verdict.HOLDS) == (finding is None)
    assert finding is None or finding in check.findings


def test_an_undelivered_version_that_stays_is_not_blamed_on_the_count():
    check = freshness(pair_of(lambda trained, sampler: None, version=lambda: 0))
    assert check.verdict is Verdict.DISAGREES and not any("version" in finding for finding in check.findings)


def test_a_sampler_in_float32_agrees_within_its_own_precision():
    def sync(trained, sampler):
        sampler.load_state_dict({name: weight.float() for name, weight in trained.state_dict().items()})

    made = freshness(pair_of(sync, sampler=transformer(torch.float32)))
    assert made.verdict is Verdict.HOLDS and made.error > 1e-9, made
    assert made.tolerance == 1e-5 and made.why == "the subject computes in float32"

    def sync_slightly_off(trained, sampler):
        sampler.load_state_dict({name: 1.0001 * weight.float() for name, weight in trained.state_dict().items()})

    assert freshness(pair_of(sync_slightly_off, sampler=transformer(torch.float32))).verdict is Verdict.DISAGREES


@pytest.mark.parametrize(
    "change",
    [
        lambda weight: weight.mul_(0.5),
        lambda weight: weight.copy_(weight.bfloat16()),
        lambda weight: weight.view(-1)[:1].add_(0.01),
        lambda weight: weight.view(-1)[:1].fill_(float("nan")),
    ],
    ids=["halved", "rounded", "one entry", "NaN"],
)
@pytest.mark.parametrize("changed", ["head.weight", "token_embedding.weight"])
def test_a_sync_that_changes_what_is_trained_is_found(change, changed):
    """Both sides agree afterwards, on the wrong weights."""

    def sync(trained, sampler):
        with torch.no_grad():
            change(dict(trained.named_parameters())[changed])
        copy_all(trained, sampler)

    pair = pair_of(sync)
    before = {name: weight.detach().clone() for name, weight in pair.weights.items()}
    check = freshness(pair)
    if check.verdict is Verdict.COULD_NOT_RUN:
        assert "returned NaN" in check.detail
    else:
        lines = [line for line in check.findings if "changes the trained tensor" in line]
        assert len(lines) == 1 and changed in lines[0], check.findings
    assert all(torch.equal(weight, before[name]) for name, weight in pair.weights.items()), "put back all the same"


def test_a_tensor_that_moves_no_logp_is_said_not_to_be_told_apart():
    shift, table = torch.zeros(1, dtype=torch.float64), torch.zeros(V, V, dtype=torch.float64)

    def score(tokens):
        return (table + shift)[tokens.roll(1, dims=1)].log_softmax(-1).gather(-1, tokens[..., None])[..., 0]

    assert "told apart" not in freshness(Pair({"table": table}, lambda: None, score, score)).exactness
    held = {"shift": torch.zeros(1, dtype=torch.float64)}

    def without_shift(tokens):
        logits = (table + held["shift"])[tokens.roll(1, dims=1)]
        return logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]

    check = freshness(Pair({"table": table, "shift": shift}, lambda: None, score, without_shift))
    assert check.verdict is Verdict.HOLDS and "1 of them move no log-probability" in check.exactness
    inert = torch.zeros(2, dtype=torch.float64)
    check = freshness(Pair({"table": table, "inert": inert}, lambda: None, score, score))
    assert check.verdict is Verdict.HOLDS and "1 of them move no log-probability" in check.exactness
    check = freshness(Pair({"inert": inert}, lambda: None, score, score))
    assert check.verdict is Verdict.COULD_NOT_RUN and "are they the live ones?" in check.detail


def test_tokens_that_neither_side_can_draw_are_no_difference():
    table = torch.zeros(V, V, dtype=torch.float64)
    cut = torch.tensor([0.0, 0.0, float("-inf")], dtype=torch.float64)

    def score(tokens):
        return (table + cut)[tokens.roll(1, dims=1)].log_softmax(-1).gather(-1, tokens[..., None])[..., 0]

    assert freshness(Pair({"table": table}, lambda: None, score, score)).verdict is Verdict.HOLDS


def test_support_that_moves_with_the_weights_is_delivered_too():
    """Top-2 of the trained weights: a perturbation changes which token is cut, which is infinitely far in log-prob."""
    generator = torch.Generator().manual_seed(1)
    table = 0.01 * torch.randn(V, V, generator=generator, dtype=torch.float64)

    def score(weights):
        cut = weights.masked_fill(weights < weights.topk(2).values[..., -1:], float("-inf"))
        return lambda tokens: cut[tokens.roll(1, dims=1)].log_softmax(-1).gather(-1, tokens[..., None])[..., 0]

    def pair(deliver):
        held = {"table": table.clone()}
        sync = (lambda: held.update(table=table.clone())) if deliver else (lambda: None)
        return Pair({"table": table}, sync, lambda t: score(table)(t), lambda t: score(held["table"])(t))

    assert freshness(pair(True)).verdict is Verdict.HOLDS
    assert freshness(pair(False)).verdict is Verdict.DISAGREES


def broken_sync():
    raise ConnectionError("no engine at port 8000")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"weights": {}}, "names no trained tensor"),
        ({"sync": broken_sync}, "the sync raised ConnectionError: no engine at port 8000"),
        ({"trained_logp": lambda tokens: tokens.sum(1).double()}, "the trainer's score returned (9,); need"),
        ({"sampler_logp": lambda tokens: None}, "the sampler's score returned NoneType"),
        ({"sampler_logp": lambda tokens: tokens * float("nan")}, "the sampler's score returned NaN"),
        ({"sampler_logp": lambda tokens: tokens * 1j}, "the sampler's score returned a complex tensor"),
        ({"version": lambda: None}, "the version is NoneType; it must be a whole number"),
        ({"version": lambda: 1.5}, "the version is float; it must be a whole number"),
        ({"version": lambda: "2"}, "the version is str; it must be a whole number"),
        ({"version": lambda: 1 / 0}, "the version raised ZeroDivisionError"),
        ({"weights": {"w": torch.zeros(2, dtype=torch.int64)}}, "need a tensor of real numbers"),
    ],
)
def test_a_pair_that_cannot_be_audited_is_no_verdict_on_it(parts, message):
    pair = pair_of(copy_all)
    whole = {name: getattr(pair, name) for name in ("weights", "sync", "trained_logp", "sampler_logp")}
    check = freshness(Pair(**(whole | parts)))
    assert check.verdict is Verdict.COULD_NOT_RUN and message in check.detail
