"""Are the sampler's distribution and the scorer's one? By every response of a tree, under several settings."""

import itertools
from functools import partial

import pytest
import torch

from assay.audit.invariants.decoding import Decoding
from assay.audit.invariants.scoring import scorer_agrees, statistic_agrees
from assay.core.logprobs import processed_logp
from assay.verdicts import Verdict


def nucleus(logits, temperature, top_k, top_p, min_p):
    return processed_logp(logits, temperature, top_k, top_p, min_p).exp()


def tempered(logits, temperature):
    return (logits / temperature).softmax(-1)


def take(table, tokens):
    return table.gather(-1, tokens[..., None])[..., 0]


def as_sampled(logits, tokens, temperature, top_k, top_p, min_p):
    return take(processed_logp(logits, temperature, top_k, top_p, min_p), tokens)


def over_all(logits, tokens, temperature):
    return take((logits / temperature).log_softmax(-1), tokens)


def untempered(logits, tokens):
    return take(logits.log_softmax(-1), tokens)


def next_to_it(logits, tokens, temperature):
    """Scores each token with the logits of the position before it."""
    return take((logits / temperature).log_softmax(-1).roll(1, dims=1), tokens)


def narrower(logits, tokens, temperature, top_k, top_p, min_p):
    return take(processed_logp(logits, temperature, 1, top_p, min_p), tokens)


def mass_off_the_support(logits, tokens, temperature, top_k, top_p, min_p):
    """Right for every token that is drawn, and e^-5 for those that are not."""
    scored = as_sampled(logits, tokens, temperature, top_k, top_p, min_p)
    return scored.masked_fill(scored.isinf(), -5.0)


def nan_after_the_end(logits, tokens, temperature, top_k, top_p, min_p):
    scored = as_sampled(logits, tokens, temperature, top_k, top_p, min_p)
    over = torch.zeros_like(tokens, dtype=torch.bool)
    over[:, 1:] = tokens[:, :1] == 0
    return scored.masked_fill(over, float("nan"))


def nan_inside(logits, tokens, temperature):
    return over_all(logits, tokens, temperature) * float("nan")


def in_float32(logits, tokens, temperature):
    return take((logits.float() / temperature).log_softmax(-1), tokens)


def in_bfloat16(logits, tokens, temperature):
    return take((logits.bfloat16() / temperature).log_softmax(-1), tokens)


@pytest.mark.parametrize(
    ("sampler", "scorer"),
    [
        (nucleus, as_sampled),
        (nucleus, nan_after_the_end),
        (tempered, over_all),
        (lambda logits: logits.softmax(-1), untempered),
    ],
)
def test_a_scorer_of_the_sampler_s_own_distribution_holds(sampler, scorer):
    check = scorer_agrees(sampler, scorer)
    assert check.verdict is Verdict.HOLDS and check.invariant == "I8", check
    assert check.error < 1e-13 and "13 responses" in check.exactness


@pytest.mark.parametrize(
    ("sampler", "scorer"),
    [
        (tempered, untempered),
        (nucleus, over_all),
        (nucleus, narrower),
        (nucleus, mass_off_the_support),
        (tempered, next_to_it),
        (tempered, nan_inside),
        (tempered, in_bfloat16),
    ],
)
def test_any_other_scorer_disagrees(sampler, scorer):
    assert scorer_agrees(sampler, scorer).verdict is Verdict.DISAGREES


def slightly_hotter(logits, tokens, temperature):
    """Scores at a temperature that is off by more than float32 rounds."""
    return in_float32(logits, tokens, temperature * 1.001)


def test_float32_agrees_within_its_precision_and_bfloat16_does_not():
    made = scorer_agrees(tempered, in_float32)
    assert made.verdict is Verdict.HOLDS and made.error > 1e-9, made
    assert made.tolerance == 1e-5 and made.why == "the subject computes in float32"
    assert scorer_agrees(tempered, slightly_hotter).verdict is Verdict.DISAGREES
    half = scorer_agrees(tempered, in_bfloat16)
    assert half.verdict is Verdict.DISAGREES and half.tolerance == 1e-9 and "half precision" in half.why
    assert scorer_agrees(tempered, over_all).tolerance == 1e-9
    rounded = statistic_agrees(
        tempered, lambda logits, temperature: entropy_by_hand(logits.float(), temperature), of="entropy"
    )
    assert rounded.verdict is Verdict.HOLDS and rounded.tolerance == 1e-5


def test_an_untempered_scorer_is_right_at_temperature_one_alone():
    assert scorer_agrees(tempered, untempered, decodings=[Decoding()]).verdict is Verdict.HOLDS
    findings = scorer_agrees(tempered, untempered).findings
    assert [finding.split(":")[0] for finding in findings] == ["temperature 0.6", "temperature 1.7"]


def test_a_wider_scorer_is_off_by_the_mass_that_the_sampler_keeps():
    """Logits [2, 1, 0, -1] of which two are kept: every ratio is (e^2 + e) / (e^2 + e + 1 + 1/e) = 0.8808 a token."""
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]], dtype=torch.float64)
    kept = (torch.e**2 + torch.e) / (torch.e**2 + torch.e + 1 + 1 / torch.e)
    for token in (0, 1):
        scored = over_all(logits, torch.tensor([token]), 1.0) - processed_logp(logits, top_k=2)[:, token]
        assert float(scored.exp()) == pytest.approx(kept) == pytest.approx(0.8808, abs=5e-5)


def test_the_error_is_the_worst_ratio_by_brute_force():
    """Recompute all responses with itertools from the logits that the scorer is shown."""
    seen = {}

    def spy(logits, tokens, temperature):
        seen.update({tuple(t.tolist()): table for t, table in zip(tokens, logits, strict=True)})
        return over_all(logits, tokens, temperature)

    check = scorer_agrees(nucleus, spy, decodings=[Decoding(top_k=2)])
    worst = 0.0
    for response in [(0,), *itertools.product((1, 2, 3), range(4))]:
        drawn = scored = 1.0
        table = seen[(*response, 0)[:2]].softmax(-1).tolist()
        for token, row in zip(response, table, strict=False):
            best = sorted(row)[-2:]
            scored *= row[token]
            drawn *= row[token] / sum(best) if row[token] in best else 0.0
        worst = max(worst, abs(scored / drawn - 1) if drawn else scored)
    assert check.error == pytest.approx(worst, rel=1e-12) and "top_k 2: response" in check.findings[0]


def entropy_by_hand(logits, temperature):
    return torch.distributions.Categorical(logits=logits / temperature).entropy()


def entropy_untempered(logits):
    return torch.distributions.Categorical(logits=logits).entropy()


def entropy_of_kept(logits, temperature, top_k, top_p, min_p):
    probability = nucleus(logits, temperature, top_k, top_p, min_p)
    return torch.special.entr(probability).sum(-1)


def kl_by_hand(logits, logits_ref, temperature):
    p, q = (torch.distributions.Categorical(logits=made / temperature) for made in (logits, logits_ref))
    return torch.distributions.kl_divergence(p, q)


def kl_the_other_way(logits, logits_ref, temperature):
    return kl_by_hand(logits_ref, logits, temperature)


@pytest.mark.parametrize(
    ("sampler", "of", "right", "wrong"),
    [
        (tempered, "entropy", entropy_by_hand, entropy_untempered),
        (nucleus, "entropy", entropy_of_kept, entropy_by_hand),
        (tempered, "kl", kl_by_hand, kl_the_other_way),
        (tempered, "kl", kl_by_hand, lambda logits, logits_ref: kl_by_hand(logits, logits_ref, 1.0)),
        (tempered, "entropy", entropy_by_hand, lambda logits: entropy_untempered(logits) * float("nan")),
        (tempered, "kl", kl_by_hand, lambda logits: logits[:, 0] * float("nan")),
    ],
)
def test_statistics_are_those_of_what_is_drawn(sampler, of, right, wrong):
    held = statistic_agrees(sampler, right, of=of)
    assert held.verdict is Verdict.HOLDS and held.error < 1e-13, held
    assert statistic_agrees(sampler, wrong, of=of).verdict is Verdict.DISAGREES
    assert statistic_agrees(sampler, wrong, of=of).invariant == "I8"


def raising(logits, tokens):
    raise ValueError("no such kernel")


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (partial(scorer_agrees, tempered, raising), "the scorer raised ValueError: no such kernel"),
        (partial(scorer_agrees, tempered, lambda logits, labels: logits), "the scorer asks for 'labels'"),
        (partial(scorer_agrees, tempered, lambda logits: logits), "the scorer returned (13, 2, 4); need"),
        (partial(scorer_agrees, lambda logits: logits, untempered), "returned no distribution"),
        (partial(scorer_agrees, lambda logits: logits.exp(), untempered), "returned no distribution"),
        (partial(statistic_agrees, tempered, entropy_by_hand, of="entropies"), "expected one of entropy, kl"),
        (partial(statistic_agrees, tempered, lambda logits: 1.0, of="correlation"), "expected one of entropy, kl"),
        (partial(scorer_agrees, tempered, lambda logits, tokens: tokens * 1j), "the scorer returned a complex tensor"),
        (partial(scorer_agrees, tempered, lambda tokens: tokens.to("meta")), "reading what the scorer returned raised"),
        (partial(statistic_agrees, nucleus, kl_by_hand, of="kl"), "the kl is infinite"),
        (partial(statistic_agrees, tempered, lambda logits: 0.5, of="entropy"), "the entropy returned float; need"),
    ],
)
def test_what_cannot_be_compared_is_no_verdict(check, message):
    made = check()
    assert made.verdict is Verdict.COULD_NOT_RUN and message in made.detail, made
