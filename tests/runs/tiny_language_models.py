"""Small language models built from a config, and a tokenizer trained on a few lines. Nothing is downloaded."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

LINES = ["1+2=3", "5+4=9", "7+6=13", "0+8=8", "what is it?"]
CHAT = "{% for turn in messages %}<{{ turn['role'] }}>{{ turn['content'] }}</s>{% endfor %}"
SIZES: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16}
WIDE = {**SIZES, "intermediate_size": 24, "num_key_value_heads": 1, "max_position_embeddings": 64}

NARROW = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 64}


def tiny_tokenizer() -> Any:
    """Return a byte-level BPE tokenizer with a chat template, an end and a padding token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=270, special_tokens=["<s>", "</s>", "<pad>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", padding_side="left"
    )
    fast.chat_template = CHAT
    return fast


def tiny_model(family: str = "llama", *, tied: bool = True, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """Return a two-layer model with random weights: ``gpt2``, ``llama`` or ``qwen2``."""
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config

    tokens = {"vocab_size": 272, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "tie_word_embeddings": tied}
    kinds = {"llama": (LlamaConfig, WIDE), "qwen2": (Qwen2Config, WIDE), "gpt2": (GPT2Config, NARROW)}
    config, sizes = kinds[family]
    torch.manual_seed(seed)
    # .to(dtype) would also round the rotary frequencies, which from_pretrained keeps in float32
    model = AutoModelForCausalLM.from_config(config(**sizes, **tokens), dtype=dtype)
    model.generation_config.repetition_penalty = 1.0625
    return model.eval()


def tiny_adapter(family: str = "llama", *, seed: int = 0) -> Any:
    """Return a tiny model with a LoRA adapter that does something."""
    from peft import LoraConfig, get_peft_model

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)  # peft asks by the old name
        model = get_peft_model(tiny_model(family, seed=seed), LoraConfig(r=2, lora_alpha=4, task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.normal_(generator=torch.Generator().manual_seed(seed + 1))
    return model.eval()


def logits(model: Any) -> torch.Tensor:
    """Return a model's logits on a fixed row of tokens."""
    with torch.no_grad():
        values: torch.Tensor = model(input_ids=torch.arange(3, 19)[None]).logits
    return values


def size_of(folder: Path) -> int:
    """Return the bytes of a directory's files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
