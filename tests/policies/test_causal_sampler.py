"""The package's own sampler against a plain loop, its own scorer, and the exact law of the responses."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from policies.tiny_policies import adapted, naive_logits, naive_logp, taken, tiny_causal, twins
from scipy.stats import chi2

from assay.core.logprobs import processed_logp
from assay.core.streams import Stream, uniforms
from assay.policies.causal.engine import DROP, OwnEngine
from assay.policies.causal.model import CausalPolicy
from assay.policies.causal.pack import pack
from assay.policies.engines import Decoding, Drawn, Engine, Request
from assay.training.language.recipe import GAPS

STOP = frozenset({3, 4, 5})
REQUESTS = [
    Request((7, 8, 9, 10, 11, 12, 13), 5, (0, 1, 2, 3)),
    Request((20,), 2, (9,)),
    Request((30, 31, 32), 11, (2, 0, 1)),
    Request(tuple(range(6, 26)), 4, (0, 7)),
]
CUTS = [(0, 1.0), (5, 1.0), (0, 0.7), (6, 0.8)]


def decoding(*, tokens: int = 9, top_k: int = 0, top_p: float = 1.0, **given: Any) -> Decoding:
    return Decoding(0.8, top_k, top_p, tokens, given.pop("stop_tokens", STOP), **given)


def generate(
    policy: CausalPolicy, requests: list[Request], how: Decoding, *, rows: int = 64, prompt_tokens: int = 4096,
    ended: Any = None, step: int = 2,
) -> list[list[Drawn]]:  # fmt: skip
    engine = OwnEngine(policy, rows=rows, prompt_tokens=prompt_tokens, ended=ended)
    return engine.generate(requests, how, seed=5, stream=Stream.ROLLOUT, step=step)


def plain(model: Any, request: Request, sample: int, how: Decoding, step: int = 2) -> tuple[list[int], list[float]]:
    """Draw one response by inverting the cumulative law of each token, from a plain forward of all before it."""
    units = uniforms(5, Stream.ROLLOUT, how.max_tokens, step=step, problem=[request.problem], sample=[sample])[0]
    said: list[int] = []
    logp: list[float] = []
    while len(said) < how.max_tokens and not (said and said[-1] in how.stop_tokens):
        with torch.no_grad():
            logits = naive_logits(model, request.prompt, [*said, 0])[-1]
        law = processed_logp(logits, how.temperature, how.top_k, how.top_p)
        said.append(int((law.exp().cumsum(0) <= units[len(said)]).sum()))
        logp.append(float(law[said[-1]]))
    return said, logp


@pytest.mark.parametrize("vocabulary", [37, 600])
@pytest.mark.parametrize(("top_k", "top_p"), CUTS)
def test_responses_are_those_of_a_plain_loop_over_the_same_numbers(top_k, top_p, vocabulary):
    policy, model = twins(vocabulary=vocabulary)
    how = decoding(top_k=top_k, top_p=top_p)
    for request, drawn in zip(REQUESTS, generate(policy, REQUESTS, how), strict=True):
        for sample, one in zip(request.samples, drawn, strict=True):
            said, logp = plain(model, request, sample, how)
            assert one.tokens == tuple(said)
            assert one.logp == pytest.approx(logp, abs=1e-12)
            assert one.truncated == (said[-1] not in STOP)


@pytest.mark.parametrize(("family", "near"), [("gpt2", 1e-12), ("llama", 1e-5), ("qwen2", 1e-5)])
def test_no_limit_and_no_neighbour_changes_a_response(family, near):
    policy, _ = twins(family)
    how = decoding(top_k=6, top_p=0.9)
    expected = generate(policy, REQUESTS, how)
    for rows, prompt_tokens in ((1, 4096), (2, 1), (3, 10), (64, 1)):
        found = generate(policy, REQUESTS, how, rows=rows, prompt_tokens=prompt_tokens)
        assert tokens_of(found) == tokens_of(expected)
        assert flat(found) == pytest.approx(flat(expected), abs=near)
    for order in ((3, 1, 0, 2), (2, 3, 1, 0)):
        found = generate(policy, [REQUESTS[number] for number in order], how, rows=5)
        assert tokens_of(found) == [tokens_of(expected)[number] for number in order]
    alone = [[generate(policy, [Request(r.prompt, r.problem, (s,))], how)[0][0] for s in r.samples] for r in REQUESTS]
    assert tokens_of(alone) == tokens_of(expected)


@pytest.mark.parametrize("seed", range(3))
def test_other_steps_samples_and_problems_have_other_numbers(seed):
    policy = CausalPolicy(tiny_causal(seed=seed))
    how = decoding(tokens=6, stop_tokens=frozenset())
    request = Request((7, 8, 9), 0, tuple(range(20)))
    here, later = generate(policy, [request], how)[0], generate(policy, [request], how, step=3)[0]
    other = generate(policy, [Request(request.prompt, 1, request.samples)], how)[0]
    assert len({one.tokens for one in [*here, *later, *other]}) > 55


@pytest.mark.parametrize(("top_k", "top_p"), CUTS)
@pytest.mark.parametrize(("family", "near"), [("gpt2", 1e-12), ("llama", 1e-5), ("qwen2", 1e-5)])
def test_the_scorer_says_what_the_sampler_drew_with(family, near, top_k, top_p):
    policy, model = twins(family)
    drawn = generate(policy, REQUESTS, decoding(top_k=top_k, top_p=top_p))
    row = pack([request.prompt for request in REQUESTS], [[one.tokens for one in group] for group in drawn])
    with torch.no_grad():
        logp = policy.token_logp(row, temperature=0.8, top_k=top_k, top_p=top_p).logp
    assert logp.tolist() == pytest.approx(flat(drawn), abs=near)
    for request, group in zip(REQUESTS, drawn, strict=True):
        for one in group:
            law = naive_logp(model, request.prompt, one.tokens, temperature=0.8, top_k=top_k, top_p=top_p)
            assert taken(law, one.tokens).tolist() == pytest.approx(one.logp, abs=near)


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2"])
def test_in_bfloat16_sampler_and_scorer_differ_by_less_than_a_run_accepts(family):
    policy = CausalPolicy(tiny_causal(family, dtype=torch.float32), autocast=torch.bfloat16)
    drawn = generate(policy, REQUESTS, decoding())
    row = pack([request.prompt for request in REQUESTS], [[one.tokens for one in group] for group in drawn])
    with torch.no_grad():
        logp = policy.token_logp(row, temperature=0.8).logp
    assert (logp - torch.tensor(flat(drawn))).abs().max() < GAPS["bfloat16"]


def test_the_law_of_the_responses_is_the_softmax():
    """Chi-square over all responses of at most two tokens; a right sampler fails once in a million."""
    policy, model = twins(vocabulary=5)
    how = Decoding(2.0, 0, 1.0, 2, frozenset({4}))
    prompt, draws = (0, 3, 1), 4000
    law: dict[tuple[int, ...], float] = {}
    with torch.no_grad():
        for first, second in itertools.product(range(5), range(5)):
            response = (first,) if first == 4 else (first, second)
            logp = taken(naive_logp(model, prompt, response, temperature=2.0), response)
            law[response] = float(logp.sum().exp())
    assert sum(law.values()) == pytest.approx(1.0)
    drawn = generate(policy, [Request(prompt, 0, tuple(range(draws)))], how, rows=1000)[0]
    seen = Counter(one.tokens for one in drawn)
    assert seen.keys() <= law.keys()
    statistic = sum((seen[response] - draws * p) ** 2 / (draws * p) for response, p in law.items())
    assert min(law.values()) * draws > 5  # what the chi-square law needs of a cell
    assert statistic < chi2.isf(1e-6, len(law) - 1)


class Reads:
    """The tokens that each forward of a model reads."""

    def __init__(self, policy: CausalPolicy) -> None:
        self.counts: list[int] = []
        policy.model.get_input_embeddings().register_forward_hook(
            lambda _, given, made: self.counts.append(given[0].numel())
        )


def test_a_prompt_is_read_once_for_all_its_responses():
    policy, _ = twins()
    reads = Reads(policy)
    generate(policy, REQUESTS, decoding(tokens=1))
    assert reads.counts == [sum(len(request.prompt) for request in REQUESTS)]
    reads.counts.clear()
    generate(policy, [Request((1, 2, 6), 0, tuple(range(7)))], decoding(tokens=1), rows=3)
    assert sum(reads.counts) == 3 * 3  # once for each three of the seven


def test_finished_responses_are_dropped_and_the_last_token_is_never_read():
    policy, _ = twins()
    reads = Reads(policy)
    drawn = generate(policy, [Request((1, 2, 6), 0, tuple(range(40)))], decoding(tokens=12))[0]
    lengths = [len(one.tokens) for one in drawn]
    assert len(set(lengths)) > 3
    for step, count in enumerate(reads.counts[1:], start=1):
        alive = sum(length > step for length in lengths)
        assert alive <= count and (count - alive) * DROP <= count
    assert len(reads.counts) == max(lengths)


def test_waiting_requests_take_the_places_of_finished_ones():
    policy, _ = twins()
    reads = Reads(policy)
    request = Request((1, 2, 6), 0, tuple(range(40)))
    drawn = generate(policy, [Request(request.prompt, 0, (sample,)) for sample in request.samples], decoding(), rows=4)
    assert tokens_of(drawn) == [[one.tokens] for one in generate(policy, [request], decoding())[0]]
    decoded = sum(len(group[0].tokens) - 1 for group in drawn)
    assert sum(count for count in reads.counts if count <= 4) >= decoded


def test_truncated_is_the_longest_length_without_an_end():
    policy, _ = twins()
    for tokens in (1, 2, 9):
        for group in generate(policy, REQUESTS, decoding(tokens=tokens)):
            for one in group:
                assert len(one.tokens) == len(one.logp) <= tokens
                assert not STOP & set(one.tokens[:-1])
                assert one.truncated == (one.tokens[-1] not in STOP)
                assert not one.truncated or len(one.tokens) == tokens


def test_a_response_can_end_at_its_first_token():
    policy, _ = twins()
    how = decoding(stop_tokens=frozenset(range(37)))
    assert all(len(one.tokens) == 1 and not one.truncated for group in generate(policy, REQUESTS, how) for one in group)


def test_a_response_ends_where_a_stop_string_is_complete():
    policy, _ = twins()
    how = decoding(tokens=12, stop_tokens=frozenset())
    free = generate(policy, REQUESTS, how)
    stopped = generate(policy, REQUESTS, how, ended=lambda tokens: sum(tokens) >= 60)
    for one, whole in zip(sum(stopped, []), sum(free, []), strict=True):
        length = next((n for n in range(1, 13) if sum(whole.tokens[:n]) >= 60), 12)
        assert one.tokens == whole.tokens[:length]
        assert one.truncated == (sum(one.tokens) < 60)


def test_greedy_takes_the_likeliest_token_each_time():
    policy, model = twins()
    for request, group in zip(REQUESTS, generate(policy, REQUESTS, decoding(greedy=True)), strict=True):
        said: list[int] = []
        while len(said) < 9 and not (said and said[-1] in STOP):
            with torch.no_grad():
                said.append(int(naive_logits(model, request.prompt, [*said, 0])[-1].argmax()))
        assert {one.tokens for one in group} == {tuple(said)}
        assert all(one.logp == (0.0,) * len(said) for one in group)


def test_adapters_are_drawn_from():
    """The sampler reads the weights that are trained: it follows a change of an adapter at once."""
    policy = CausalPolicy(adapted(tiny_causal()))
    plain_model = adapted(tiny_causal(attention="eager"))
    drawn = generate(policy, REQUESTS[:1], decoding())[0]
    logp = taken(naive_logp(plain_model, REQUESTS[0].prompt, drawn[0].tokens, temperature=0.8), drawn[0].tokens)
    assert logp.tolist() == pytest.approx(drawn[0].logp, abs=1e-12)
    with torch.no_grad():
        next(value for name, value in policy.trained() if "lora_B" in name).add_(1.0)
    assert tokens_of([generate(policy, REQUESTS[:1], decoding())[0]]) != tokens_of([drawn])


def test_nothing_asked_for_is_nothing_drawn():
    policy, _ = twins()
    assert generate(policy, [], decoding()) == []
    assert generate(policy, [Request((1,), 0, ())], decoding()) == [[]]
    assert isinstance(OwnEngine(policy, rows=1, prompt_tokens=1), Engine)


def tokens_of(drawn: list[list[Drawn]]) -> list[list[tuple[int, ...]]]:
    return [[one.tokens for one in group] for group in drawn]


def flat(drawn: list[list[Drawn]]) -> list[float]:
    return [value for group in drawn for one in group for value in one.logp]
