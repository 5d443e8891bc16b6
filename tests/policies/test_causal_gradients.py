"""The packed forward and backward against a plain forward of each row, with its own log-softmax, under autograd."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from policies.tiny_policies import (
    FAMILIES,
    adapted,
    distance,
    gradient_of,
    naive_logits,
    naive_logp,
    taken,
    tiny_causal,
    twins,
)

from assay.core.logprobs import processed_logp
from assay.errors import InputError
from assay.policies.causal import head, shared_attention
from assay.policies.causal.loading import recompute_activations
from assay.policies.causal.model import CausalPolicy
from assay.policies.causal.pack import pack
from assay.training.language.batch import Batch

EVERY = [("gpt2", True), ("llama", True), ("llama", False), ("qwen2", True), ("qwen2", False)]


def ragged(model: Any, seed: int, **cut: Any) -> Batch:
    """Return groups of different sizes, prompts and responses of different lengths, of tokens that may be drawn."""
    chance = random.Random(seed)
    size = model.get_input_embeddings().weight.shape[0]
    prompts, responses, group = [], [], []
    for number in range(3):
        prompts.append(tuple(chance.randrange(size) for _ in range(chance.randint(1, 9))))
        for _ in range(chance.randint(1, 4)):
            said: list[int] = []
            for _ in range(chance.randint(1, 6)):
                with torch.no_grad():
                    logits = naive_logits(model, prompts[-1], [*said, 0])[-1]
                allowed = processed_logp(logits, **cut).isfinite().nonzero()[:, 0].tolist()
                said.append(chance.choice(allowed))
            responses.append(tuple(said))
            group.append(number)
    return Batch(tuple(prompts), tuple(responses), tuple(group))


def coefficients(batch: Batch, columns: int = 1) -> list[torch.Tensor]:
    """Return random coefficients of every token, a list of ``[T, columns]``."""
    generator = torch.Generator().manual_seed(7)
    return [
        torch.randn(len(response), columns, generator=generator, dtype=torch.float64) for response in batch.responses
    ]


def packed_sum(policy: CausalPolicy, batch: Batch, coef: list[torch.Tensor], budget: int, **drawing: Any) -> float:
    """Differentiate a weighted sum of log-probability, entropy and KL, in parts, and return its value."""
    total = 0.0
    for rows in batch.parts(range(len(batch.responses)), budget):
        made = policy.token_logp(batch.part(rows), **drawing)
        columns = [made.logp, made.entropy] + ([] if made.kl is None else [made.kl])
        weight = torch.cat([coef[row] for row in rows])
        value = (torch.stack(columns, 1)[:, : weight.shape[1]].double() * weight).sum()
        value.backward()
        total += float(value.detach())
    return total


def naive_sum(
    model: Any, batch: Batch, coef: list[torch.Tensor], *, reference: Any = None, temperature: float = 1.0, **cut: Any
) -> float:
    """Differentiate the same sum, a row at a time."""
    total = 0.0
    for row, response in enumerate(batch.responses):
        prompt = batch.prompts[batch.group[row]]
        logp = naive_logp(model, prompt, response, temperature=temperature, **cut)
        finite = logp.masked_fill(logp.isinf(), 0.0)
        columns = [taken(logp, response), -(logp.exp() * finite).sum(1)]
        if reference is not None:
            with torch.no_grad():
                ref = (naive_logits(reference, prompt, response) / temperature).log_softmax(-1)
            columns.append((logp.exp() * (logp - ref)).sum(1))
        value = (torch.stack(columns, 1)[:, : coef[row].shape[1]].double() * coef[row]).sum()
        value.backward()
        total += float(value.detach())
    return total


def checkpointed(model: Any) -> Any:
    """Return a model that computes its layers again in the backward, as a loaded one does."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    recompute_activations(model)
    return model


@pytest.mark.parametrize(("family", "tied"), EVERY)
@pytest.mark.parametrize("seed", [0, 1])
def test_gradients_are_those_of_the_naive_forward_in_any_split(family, tied, seed):
    policy, model = twins(family, tied=tied)
    batch = ragged(model, seed)
    coef = coefficients(batch)
    values = {"naive": 0.0}

    def naive() -> None:
        values["naive"] = naive_sum(model, batch, coef, temperature=0.7)

    expected = gradient_of(model, naive)
    for budget in (1, 20, 10_000):

        def packed(budget: int = budget) -> None:
            values["packed"] = packed_sum(policy, batch, coef, budget, temperature=0.7)

        found = gradient_of(policy.model, packed)
        assert distance(found, expected) < FAMILIES[family], budget
        assert values["packed"] == pytest.approx(values["naive"], rel=FAMILIES[family])


@pytest.mark.parametrize("block", [1, 40, 400])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_size_of_attention_blocks_changes_nothing(family, block, monkeypatch):
    policy, model = twins(family)
    batch = ragged(model, 3)
    coef = coefficients(batch)
    expected = gradient_of(model, lambda: naive_sum(model, batch, coef))
    monkeypatch.setattr(shared_attention, "BLOCK", block)
    assert (
        distance(gradient_of(policy.model, lambda: packed_sum(policy, batch, coef, 10_000)), expected)
        < FAMILIES[family]
    )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "cut", [{}, {"top_k": 5}, {"top_p": 0.6}, {"top_k": 40, "top_p": 0.9}], ids=["all", "k", "p", "k+p"]
)
def test_log_probability_entropy_and_exact_kl_in_slices_of_the_vocabulary(cut, tied, monkeypatch):
    monkeypatch.setattr(head, "SLICE", 1)  # 256 logits a slice: three slices
    policy, model = twins(vocabulary=600, tied=tied)
    reference, plain = twins(vocabulary=600, tied=tied, seed=5)
    batch = ragged(model, 4, **cut)
    with_kl = not cut  # an exact KL is over the whole vocabulary
    coef = coefficients(batch, 3 if with_kl else 2)
    given = {"temperature": 1.3, **cut}
    expected = gradient_of(model, lambda: naive_sum(model, batch, coef, reference=plain if with_kl else None, **given))
    found = gradient_of(
        policy.model,
        lambda: packed_sum(policy, batch, coef, 30, reference=reference if with_kl else None, **given),
    )
    assert distance(found, expected) < 1e-10
    assert all(value.grad is None for value in reference.model.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_top_k_and_top_p_are_replayed_in_the_score(family):
    policy, model = twins(family)
    cut = {"top_k": 9, "top_p": 0.8}
    batch = ragged(model, 5, **cut)
    coef = coefficients(batch)
    expected = gradient_of(model, lambda: naive_sum(model, batch, coef, temperature=1.0, **cut))
    found = gradient_of(policy.model, lambda: packed_sum(policy, batch, coef, 25, temperature=1.0, **cut))
    assert distance(found, expected) < FAMILIES[family]


@pytest.mark.parametrize("top_k", [1, 5])
def test_a_drawn_token_that_a_later_policy_would_cut_keeps_its_probability(top_k):
    """It was drawn, so it counts among those that can be: the ratio to the older policy is finite."""
    policy, model = twins()
    prompt, said = (3, 4, 5), (6, 7, 8)
    logits = naive_logits(model, prompt, said)
    kept = processed_logp(logits.detach(), top_k=top_k).isfinite()
    assert not kept[range(3), said].all()
    kept[range(3), said] = True
    expected = taken(logits.masked_fill(~kept, float("-inf")).log_softmax(-1), said)
    found = policy.token_logp(pack([prompt], [[said]]), top_k=top_k)
    assert torch.allclose(found.logp, expected, rtol=0, atol=1e-12)
    of_model = gradient_of(model, lambda: expected.sum().backward())
    assert distance(gradient_of(policy.model, lambda: found.logp.sum().backward()), of_model) < 1e-10


def test_slices_without_a_token_that_can_be_drawn_are_finite_in_float32(monkeypatch):
    monkeypatch.setattr(head, "SLICE", 1)
    policy, model = twins(vocabulary=1500, dtype=torch.float32)
    prompt, said = (3, 4, 5), tuple(range(6, 20))
    with torch.no_grad():
        made = policy.token_logp(pack([prompt], [[said]]), top_k=1)
        likeliest = naive_logits(model, prompt, said).argmax(-1)
    alone = likeliest == torch.tensor(said)
    assert made.entropy.isfinite().all() and made.logp.isfinite().all()
    assert not made.entropy[alone].any() and (likeliest >= 256).any()


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing_changes_nothing(family):
    policy, model = twins(family)
    batch = ragged(model, 6)
    coef = coefficients(batch)
    expected = gradient_of(model, lambda: naive_sum(model, batch, coef))
    checkpointed(policy.model)
    assert distance(gradient_of(policy.model, lambda: packed_sum(policy, batch, coef, 30)), expected) < FAMILIES[family]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_are_trained_and_the_reference_is_the_base_without_them(family, checkpointing):
    inner = tiny_causal(family)
    policy = CausalPolicy(adapted(checkpointed(inner) if checkpointing else inner))
    model, base = adapted(tiny_causal(family, attention="eager")), tiny_causal(family, attention="eager")
    batch = ragged(base, 8)
    coef = coefficients(batch, 3)
    expected = gradient_of(model, lambda: naive_sum(model, batch, coef, reference=base))
    found = gradient_of(policy.model, lambda: packed_sum(policy, batch, coef, 30, reference=policy.base()))
    assert expected and all("lora_" in name for name in expected)
    assert distance(found, expected) < FAMILIES[family]
    assert {name for name, _ in policy.trained()} == set(expected)


def test_bfloat16_is_near():
    """The body's products have 8 bits; a gradient made of a few of them in a row is off by some such roundings."""
    weights = tiny_causal("llama", dtype=torch.float32)
    model = tiny_causal("llama", dtype=torch.float32, attention="eager")
    policy = CausalPolicy(weights, autocast=torch.bfloat16)
    batch = ragged(model, 9)
    coef = coefficients(batch)
    expected = gradient_of(model, lambda: naive_sum(model, batch, coef))
    found = gradient_of(policy.model, lambda: packed_sum(policy, batch, coef, 10_000))
    assert 1e-6 < distance(found, expected) < 16 * 2.0**-8
    assert all(value.dtype == torch.float32 for value in found.values())


def test_what_stands_beside_a_response_does_not_change_its_log_probability():
    """No response reads another one, another group's prompt, or a place that holds nothing."""
    policy, model = twins()
    batch = ragged(model, 10)
    with torch.no_grad():
        together = policy.token_logp(batch.part(range(len(batch.responses)))).logp.split(
            [len(response) for response in batch.responses]
        )
        for row, response in enumerate(batch.responses):
            alone = policy.token_logp(pack([batch.prompts[batch.group[row]]], [[response]])).logp
            assert torch.allclose(together[row], alone, rtol=0, atol=1e-12)


def test_an_empty_prompt_or_response_is_refused():
    for prompts, responses in (([()], [[(1,)]]), ([(1,)], [[()]])):
        with pytest.raises(InputError, match="group 0: an empty prompt or response"):
            pack(prompts, responses)
