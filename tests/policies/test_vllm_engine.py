"""The vLLM engine against a stand-in that has the signatures and checks of vLLM 0.33 and a bigram model inside.

The stand-in reads weights from the file it is pointed to, draws with a generator seeded by each request, and reports
the log-probabilities it drew with. What it cannot show is vLLM's own arithmetic.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from assay.core.gap import gap
from assay.core.logprobs import processed_logp
from assay.core.streams import Stream
from assay.errors import ConfigError, UpdateError
from assay.policies.engines import Decoding, Drawn, Engine, Request

VOCABULARY, STOP = 6, 5


@dataclass(kw_only=True)
class SamplingParams:
    """The settings of vLLM that an engine may use, with its checks and its silent changes."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int = 16
    logprobs: int | None = None
    detokenize: bool = True

    def __post_init__(self) -> None:
        assert type(self.top_k) is int and self.top_k >= -1
        assert 0 < self.top_p <= 1 and self.temperature >= 0 and self.max_tokens >= 1
        assert self.seed is None or -(2**63) <= self.seed < 2**63
        if 0 < self.temperature < 0.01:
            self.temperature = 0.01
        if self.temperature == 0:
            self.top_k, self.top_p = 0, 1.0


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None


@dataclass
class RequestOutput:
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]


@dataclass
class LLM:
    """A bigram model behind the calls of ``vllm.LLM``; its prefix cache goes on with the weights that read a prompt."""

    model: str
    dtype: str = "auto"
    max_model_len: int | None = None
    gpu_memory_utilization: float = 0.92
    skip_tokenizer_init: bool = False
    enable_prefix_caching: bool | None = None
    logprobs_mode: str = "raw_logprobs"
    eos: int = STOP
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    cached: dict[tuple[int, ...], torch.Tensor] = field(default_factory=dict)
    busy: bool = False
    seen: list[SamplingParams] = field(default_factory=list)

    def collective_rpc(
        self, method: str, timeout: float | None = None, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> list[None]:
        assert (method, args, list(kwargs)) == ("reload_weights", (), ["weights_path"])
        files = list(Path(kwargs["weights_path"]).glob("*.safetensors"))
        assert files, "vLLM looks for safetensors files in the directory it is given"
        for path in files:
            self.weights.update(load_file(path))
        return [None]

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        if self.busy:
            return False
        self.cached.clear()
        return True

    def generate(
        self, prompts: list[dict[str, list[int]]], sampling_params: list[SamplingParams], *, use_tqdm: bool = True
    ) -> list[RequestOutput]:
        assert not use_tqdm and len(prompts) == len(sampling_params)
        self.seen = list(sampling_params)
        return [self._answer(prompt, chosen) for prompt, chosen in zip(prompts, sampling_params, strict=True)]

    def _answer(self, prompt: dict[str, list[int]], chosen: SamplingParams) -> RequestOutput:
        assert list(prompt) == ["prompt_token_ids"] and all(type(token) is int for token in prompt["prompt_token_ids"])
        assert chosen.n == 1 and not chosen.detokenize, "a tokenizer was not loaded"
        generator = torch.Generator().manual_seed(chosen.seed)
        table = self.cached.setdefault(tuple(prompt["prompt_token_ids"]), self.weights["table"])
        tokens, logprobs = list(prompt["prompt_token_ids"]), []
        reason = "length"
        for _ in range(chosen.max_tokens):
            token, value = self._draw(table[tokens[-1]], chosen, generator)
            tokens.append(token)
            logprobs.append({token: Logprob(value, 1)})
            if token in (chosen.stop_token_ids or ()) or (token == self.eos and not chosen.ignore_eos):
                reason = "stop"
                break
        drawn = tokens[len(prompt["prompt_token_ids"]) :]
        given = None if chosen.logprobs is None else logprobs
        return RequestOutput(prompt["prompt_token_ids"], [CompletionOutput(0, "", drawn, None, given, reason)])

    def _draw(self, logits: torch.Tensor, chosen: SamplingParams, generator: torch.Generator) -> tuple[int, float]:
        if chosen.temperature == 0:
            return int(logits.argmax()), float(logits.log_softmax(0).max())
        kept = processed_logp(logits, chosen.temperature, chosen.top_k, chosen.top_p)
        token = int(torch.multinomial(kept.exp(), 1, generator=generator))
        return token, float((kept if self.logprobs_mode == "processed_logprobs" else logits.log_softmax(0))[token])


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    stand_in = ModuleType("vllm")
    stand_in.LLM, stand_in.SamplingParams = LLM, SamplingParams  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    return stand_in


def table(seed: int) -> torch.Tensor:
    return torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def engine(module: ModuleType, tmp_path: Path) -> Any:
    made = importlib.import_module("assay.policies.engines.vllm").VllmEngine(
        tmp_path, dtype="float32", context=64, memory=0.3
    )
    made.load([("table", table(0))], 0)
    return made


DECODING = Decoding(temperature=0.7, top_k=4, top_p=0.9, max_tokens=8, stop_tokens=frozenset({STOP}))
REQUESTS = [Request((1, 2), problem=7, samples=(0, 1, 2, 3)), Request((3,), problem=8, samples=(0, 5))]


def draw(
    engine: Any, requests: list[Request] = REQUESTS, decoding: Decoding = DECODING, **at: Any
) -> list[list[Drawn]]:
    return engine.generate(requests, decoding, **{"seed": 3, "stream": Stream.ROLLOUT, "step": 2, **at})


def test_it_keeps_the_protocol_and_gives_each_sample_a_response(engine):
    assert isinstance(engine, Engine)
    assert [len(group) for group in draw(engine)] == [4, 2]
    assert draw(engine, []) == []


def test_the_log_probabilities_are_those_of_the_distribution_that_was_drawn_from(engine):
    """LP-02, IS-10: after temperature and truncation, so that a scorer that replays both has no gap."""
    weights, count = table(0), 0
    for request, group in zip(REQUESTS, draw(engine), strict=True):
        for drawn in group:
            before = torch.tensor([request.prompt[-1], *drawn.tokens[:-1]])
            scored = processed_logp(weights[before], 0.7, 4, 0.9).gather(1, torch.tensor(drawn.tokens)[:, None])
            made = gap(scored.T, torch.tensor([drawn.logp]), torch.ones(1, len(drawn.tokens), dtype=torch.bool))
            assert made.difference_max < 1e-6
            count += len(drawn.tokens)
    assert count > 10


def test_a_response_ends_with_a_stop_token_or_is_marked_as_cut(engine):
    drawn = [one for step in range(8) for group in draw(engine, step=step) for one in group]
    assert {one.truncated for one in drawn} == {True, False}
    for one in drawn:
        assert STOP not in one.tokens[:-1]
        assert one.truncated == (one.tokens[-1] != STOP)
        assert len(one.tokens) == len(one.logp) and (len(one.tokens) == 8 or not one.truncated)


def test_a_stop_token_at_the_last_position_is_an_end_and_not_a_cut(engine):
    one = Decoding(temperature=1.0, top_k=0, top_p=1.0, max_tokens=1, stop_tokens=frozenset(range(VOCABULARY)))
    assert not any(drawn.truncated for group in draw(engine, decoding=one) for drawn in group)


def test_only_the_stop_tokens_that_were_asked_for_end_a_response(engine):
    """The model's own end-of-sequence token goes on when the recipe does not name it."""
    other = Decoding(temperature=1.0, top_k=0, top_p=1.0, max_tokens=30, stop_tokens=frozenset({0}))
    drawn = [one for group in draw(engine, decoding=other) for one in group]
    assert any(STOP in one.tokens[:-1] for one in drawn)


def test_a_response_depends_on_its_address_and_not_on_its_company(engine):
    whole = draw(engine)
    assert draw(engine) == whole
    assert draw(engine, [REQUESTS[1]]) == whole[1:]
    alone = [draw(engine, [Request((1, 2), problem=7, samples=(sample,))])[0][0] for sample in range(4)]
    assert alone == whole[0]


def test_every_part_of_the_address_changes_the_seed(engine):
    """SD-02: no two responses share a seed, in a group, over steps, streams or runs."""
    seeds = []
    for at in ({}, {"seed": 4}, {"step": 3}, {"stream": Stream.EVALUATION}):
        draw(engine, **at)
        seeds += [chosen.seed for chosen in engine._llm.seen]
    assert len(set(seeds)) == 4 * 6
    assert all(type(seed) is int and 0 <= seed < 2**53 for seed in seeds)


def test_loaded_weights_are_the_ones_that_are_drawn_from_at_once(engine):
    """OFF-01 to OFF-05: a changed policy changes the sampler, also behind a prompt that it has read before."""
    draw(engine)
    sure = torch.full((VOCABULARY, VOCABULARY), -50.0)
    sure[:, 4] = 50.0
    engine.load([("table", sure)], 1)
    assert engine.version == 1
    assert {token for group in draw(engine) for one in group for token in one.tokens} == {4}


def test_the_version_moves_only_when_everything_has_arrived(engine, monkeypatch):
    engine._llm.busy = True
    with pytest.raises(UpdateError, match="old weights"):
        engine.load([("table", table(1))], 1)
    assert engine.version == -1
    with pytest.raises(UpdateError, match="load the policy's"):
        draw(engine)
    engine._llm.busy = False

    def lost(*_: object, **__: object) -> None:
        raise RuntimeError("worker died")

    monkeypatch.setattr(engine._llm, "collective_rpc", lost)
    with pytest.raises(RuntimeError, match="worker died"):
        engine.load([("table", table(1))], 1)
    assert engine.version == -1


def test_weights_that_go_missing_between_two_loads_are_noticed(engine):
    with pytest.raises(UpdateError, match="2 weights came only once, such as 'lora'"):
        engine.load([("lora", table(1))], 1)


def test_a_tied_weight_is_handed_over_once_under_its_first_name(module, engine):
    shared = table(2)
    fresh = type(engine)(Path("model"), dtype="bfloat16", context=8, memory=0.5)
    fresh.load([("table", shared), ("lm_head", shared), ("turned", shared.T)], 3)
    assert fresh._llm.weights.keys() == {"table", "turned"}
    assert torch.equal(fresh._llm.weights["turned"], shared.T)


def test_greedy_takes_the_likeliest_token_with_probability_one(engine):
    greedy = Decoding(temperature=0.001, top_k=2, top_p=0.5, max_tokens=5, stop_tokens=frozenset({STOP}), greedy=True)
    for request, group in zip(REQUESTS, draw(engine, decoding=greedy), strict=True):
        last = request.prompt[-1]
        for token in group[0].tokens:
            assert token == int(table(0)[last].argmax())
            last = token
        assert all(one.tokens == group[0].tokens and set(one.logp) == {0.0} for one in group)


def test_a_temperature_that_vllm_would_change_is_refused(engine):
    low = Decoding(temperature=0.005, top_k=0, top_p=1.0, max_tokens=5, stop_tokens=frozenset())
    with pytest.raises(ConfigError, match=r"0\.005: vllm would draw at 0\.01"):
        draw(engine, decoding=low)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda outputs: outputs[1:], "5 responses to 6 requests"),
        (lambda outputs: outputs[::-1], "another prompt"),
        (lambda outputs: setattr(outputs[2].outputs[0], "logprobs", None) or outputs, "no log-probability"),
        (lambda outputs: setattr(outputs[2].outputs[0], "finish_reason", "abort") or outputs, "'abort'"),
        (lambda outputs: setattr(outputs[2].outputs[0], "token_ids", []) or outputs, "after 0 tokens"),
        (lambda outputs: _without_stop(outputs), "ends no response"),
    ],
)
def test_an_answer_that_is_not_what_was_asked_for_is_refused(engine, monkeypatch, spoil, message):
    generate = engine._llm.generate
    monkeypatch.setattr(engine._llm, "generate", lambda *args, **options: spoil(generate(*args, **options)))
    with pytest.raises(UpdateError, match=message):
        draw(engine)


def _without_stop(outputs: list[RequestOutput]) -> list[RequestOutput]:
    """Drop the token that ended a response, as an engine would that does not return it."""
    for output in outputs:
        output.outputs[0].token_ids, output.outputs[0].finish_reason = [1], "stop"
    return outputs


def test_a_precision_without_kernels_and_an_absent_package_are_refused(module, engine, monkeypatch):
    with pytest.raises(ConfigError, match="float64"):
        type(engine)(Path("model"), dtype="float64", context=8, memory=0.5)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match=r"pip install 'assay\[vllm\]'"):
        type(engine)(Path("model"), dtype="float32", context=8, memory=0.5)
