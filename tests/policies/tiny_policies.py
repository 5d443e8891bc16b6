"""Tiny policies over any vocabulary, and the naive forward that they are held against. Nothing is downloaded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from runs.tiny_language_models import NARROW, WIDE
from torch import Tensor, nn

from assay.core.logprobs import processed_logp
from assay.policies.causal.attention import register
from assay.policies.causal.model import CausalPolicy

FAMILIES = {"gpt2": 1e-10, "llama": 1e-5, "qwen2": 1e-5}
"""Families, and the relative distance that Transformers' own rounding leaves: the last two norm in float32."""


def tiny_causal(
    family: str = "gpt2",
    *,
    vocabulary: int = 37,
    tied: bool = True,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    attention: str | None = None,
    **sizes: Any,
) -> Any:
    """Return a two-layer model with our attention unless another is named, its weights far enough from zero to matter.

    Llama and Qwen2 have two query heads to each key head.
    """
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    kinds = {
        "gpt2": (GPT2Config, NARROW),
        "llama": (LlamaConfig, {**WIDE, **heads}),
        "qwen2": (Qwen2Config, {**WIDE, **heads}),
    }
    config, given = kinds[family]
    tokens = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None, "tie_word_embeddings": tied}
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        config(vocab_size=vocabulary, **{**given, **tokens, **sizes}),
        dtype=dtype,
        attn_implementation=attention or register(),
    )
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value), alpha=0.2)
    return model.eval()


def twins(family: str = "gpt2", **given: Any) -> tuple[CausalPolicy, Any]:
    """Return a policy, and a model of the same weights with Transformers' plain attention."""
    return CausalPolicy(tiny_causal(family, **given)), tiny_causal(family, attention="eager", **given)


def adapted(model: Any, *, seed: int = 1) -> Any:
    """Return a model with LoRA adapters on every map, which do something."""
    from peft import LoraConfig, get_peft_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = get_peft_model(
            model, LoraConfig(r=2, lora_alpha=4, target_modules="all-linear", lora_dropout=0.0, task_type="CAUSAL_LM")
        )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in made.named_parameters():
            if "lora_" in name:
                value.copy_(0.2 * torch.randn(value.shape, generator=generator))
    return made.eval()


def naive_logits(model: Any, prompt: Sequence[int], response: Sequence[int]) -> Tensor:
    """Return the logits before each token of a response, from one plain forward of prompt and response."""
    row: Tensor = model(input_ids=torch.tensor([[*prompt, *response]]), use_cache=False).logits[0]
    return row[len(prompt) - 1 : len(prompt) + len(response) - 1]


def naive_logp(
    model: Any, prompt: Sequence[int], response: Sequence[int], *, temperature: float = 1.0, top_k: int = 0,
    top_p: float = 1.0,
) -> Tensor:  # fmt: skip
    """Return the log-probabilities of every token at each place of a response, ``[T, V]``, with gradient."""
    logits = naive_logits(model, prompt, response) / temperature
    kept = processed_logp(logits.detach(), top_k=top_k, top_p=top_p).isfinite()
    return logits.masked_fill(~kept, float("-inf")).log_softmax(-1)


def taken(logp: Tensor, response: Sequence[int]) -> Tensor:
    """Return the entries of the response's own tokens."""
    return logp.gather(1, torch.tensor(response)[:, None])[:, 0]


def gradient_of(model: nn.Module, backward: Callable[[], object]) -> dict[str, Tensor]:
    """Return what a function that differentiates leaves on a model's parameters."""
    model.zero_grad(set_to_none=True)
    backward()
    made = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    model.zero_grad(set_to_none=True)
    return made


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Return the relative Euclidean distance of two gradients; infinite where they are of different parameters."""
    if found.keys() != expected.keys():
        return float("inf")
    off = sum(float((found[name].double() - expected[name].double()).square().sum()) for name in expected)
    size = sum(float(value.double().square().sum()) for value in expected.values())
    return (off / size) ** 0.5
