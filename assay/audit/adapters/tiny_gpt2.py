"""A GPT-2 small enough to enumerate, its reference, and a tokenizer of three words: what a whole trainer is given."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.core.streams import Stream, normals

WORDS = ("<end>", "a", "b")
"""The vocabulary; the first word ends a response and pads."""


class CausalLM:
    """A Transformers model as a policy: tokens to logits, and parameters by TRL's names."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, tokens: Int[Tensor, "B S"], /) -> Float[Tensor, "B S V"]:
        logits: Tensor = self.model(tokens, attention_mask=torch.ones_like(tokens)).logits
        return logits

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield every parameter with its name."""
        return self.model.named_parameters()


def word_ids(prompt: str) -> list[int]:
    """Return the tokens of a prompt."""
    return [WORDS.index(word) for word in prompt.split()]


def tiny_models(directory: Path) -> tuple[Any, Any]:
    """Return a GPT-2 in float64 and its reference, which is saved where the model says that it comes from.

    TRL loads the reference again from there.
    """
    transformers = importlib.import_module("transformers")
    config = transformers.GPT2Config(
        vocab_size=len(WORDS),
        n_positions=8,
        n_embd=8,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        reference = transformers.GPT2LMHeadModel(config).double()
    for name, parameter in reference.named_parameters():  # in place of what the global stream drew
        nn.init.constant_(parameter, 1.0 if "ln" in name and name.endswith("weight") else 0.0)
    _move(reference, seed=0)
    reference.save_pretrained(directory)
    with torch.random.fork_rng():
        model = transformers.GPT2LMHeadModel.from_pretrained(directory, dtype=torch.float64)
    _move(model, seed=1)
    return model, reference.eval()


@torch.no_grad()
def _move(model: nn.Module, *, seed: int) -> None:
    """Add addressed noise to every weight: most to the embeddings, so that each prefix has a say of its own."""
    for number, (name, parameter) in enumerate(model.named_parameters()):
        noise = normals(seed, Stream.INIT, parameter.numel(), problem=number)
        scale = 0.02 if parameter.ndim == 1 else 0.3 if "wte" in name or "wpe" in name else 0.1
        parameter.add_(scale * noise.view(parameter.shape))


def tiny_tokenizer() -> Any:
    """Return a tokenizer of the few words, one token each."""
    tokenizers = importlib.import_module("tokenizers")
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token=WORDS[0])
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    fast = importlib.import_module("transformers").PreTrainedTokenizerFast
    return fast(tokenizer_object=made, eos_token=WORDS[0], pad_token=WORDS[0], padding_side="left")
