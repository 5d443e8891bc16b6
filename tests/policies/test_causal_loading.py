"""Opening a model: what is whole loads as it is, and everything that is not is refused with what is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from policies.tiny_policies import naive_logits, taken, tiny_causal
from runs.tiny_language_models import WIDE, tiny_model, tiny_tokenizer

from assay.core.digest import model_digest
from assay.errors import ConfigError, InputError
from assay.policies.causal.attention import register
from assay.policies.causal.layouts import Packed
from assay.policies.causal.loading import load
from assay.policies.causal.pack import pack
from assay.policies.causal.tokens import Codec
from assay.training.language.rollout import encode
from assay.types import TextProblem


def saved(model: Any, place: Path, *, shard: str = "10GB") -> Path:
    """Save a model and the tiny tokenizer as Transformers does."""
    model.save_pretrained(place, max_shard_size=shard)
    tiny_tokenizer().save_pretrained(place)
    return place


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return saved(tiny_model(), tmp_path / "model")


def change(place: Path, **values: Any) -> None:
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, **values}))


def logp_of(policy: Any, prompt: tuple[int, ...], said: tuple[int, ...]) -> torch.Tensor:
    with torch.no_grad():
        made: torch.Tensor = policy.token_logp(pack([prompt], [[said]])).logp
    return made


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_a_model_comes_back_as_it_was_saved(family, tmp_path):
    model = tiny_model(family)
    loaded = load(str(saved(model, tmp_path / "model")))
    assert loaded.digest == model_digest(model)
    assert loaded.context == 64 and loaded.policy.vocabulary == 272
    with torch.no_grad():
        expected = taken(naive_logits(model, (3, 4), (5, 6, 7)).log_softmax(-1), (5, 6, 7))
    assert logp_of(loaded.policy, (3, 4), (5, 6, 7)).tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    assert loaded.tokenizer("1+2=").input_ids == tiny_tokenizer()("1+2=").input_ids


def test_types_are_those_that_were_asked_for(place):
    types = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.float32}
    for dtype, weights in types.items():
        loaded = load(str(place), dtype=dtype)
        assert {value.dtype for _, value in loaded.policy.trained()} == {weights}
    wide, narrow = load(str(place), dtype="float32"), load(str(place), dtype="bfloat16")
    one, other = (logp_of(made.policy, (3, 4), (5, 6, 7)) for made in (wide, narrow))
    assert torch.allclose(one, other, atol=0.1) and not torch.equal(one, other)


def test_every_end_that_the_settings_declare_is_read(place):
    settings = json.loads((place / "generation_config.json").read_text())
    (place / "generation_config.json").write_text(json.dumps({**settings, "eos_token_id": [1, 5, 9]}))
    change(place, eos_token_id=7)
    assert load(str(place)).stop_tokens == (1, 5, 7, 9)


def test_an_end_that_the_model_cannot_say_is_none(place):
    change(place, eos_token_id=100_000)
    assert 100_000 not in load(str(place)).stop_tokens


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all"])
def test_a_missing_directory_is_named(name):
    with pytest.raises(ConfigError, match="nowhere.*: no such directory; check the path"):
        load(name)


def test_a_directory_without_a_config_is_no_model(place):
    (place / "config.json").unlink()
    with pytest.raises(ConfigError, match="no config.json in it"):
        load(str(place))


def test_a_directory_without_weights_is_no_model(place):
    (place / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="no weights in it"):
        load(str(place))


def test_a_shard_that_is_missing_is_named(tmp_path):
    place = saved(tiny_model(), tmp_path / "model", shard="20KB")
    shards = sorted(path.name for path in place.glob("model-*.safetensors"))
    assert len(shards) > 1 and load(str(place)).context == 64
    (place / shards[1]).unlink()
    with pytest.raises(ConfigError, match=f"{shards[1]} missing; half-downloaded"):
        load(str(place))


def test_an_index_that_cannot_be_read_is_said(tmp_path):
    place = saved(tiny_model(), tmp_path / "model", shard="20KB")
    (place / "model.safetensors.index.json").write_text('{"weight_map"')
    with pytest.raises(ConfigError, match="model.safetensors.index.json cannot be read"):
        load(str(place))


@pytest.mark.parametrize("kept", [0, 4, 100, 0.5, 0.99])
def test_weights_that_are_cut_off_are_refused(place, kept):
    file = place / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(kept * len(content)) if kept < 1 else kept])
    with pytest.raises(ConfigError, match="damaged|cannot be loaded"):
        load(str(place))


def test_weights_that_are_missing_are_not_made_up(place):
    from safetensors.torch import load_file, save_file

    weights = load_file(place / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, place / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match="weights of model.layers.1.mlp.up_proj.weight and 0 more are missing"):
        load(str(place))


def test_weights_of_another_shape_are_refused(place):
    change(place, intermediate_size=32)
    with pytest.raises(ConfigError, match="cannot be loaded|missing"):
        load(str(place))


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(place):
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([f"<new {number}>" for number in range(272 - len(tokenizer) + 1)])
    tokenizer.save_pretrained(place)
    with pytest.raises(ConfigError, match="the tokenizer has token 272 and the model 272 of them"):
        load(str(place))


def test_dropout_is_off_even_in_training(tmp_path):
    model = tiny_model("gpt2")
    place = saved(model, tmp_path / "model")
    change(place, resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    for checkpointing in (False, True):
        policy = load(str(place), checkpointing=checkpointing).policy
        policy.model.train()
        first, second = (logp_of(policy, (3, 4), (5, 6, 7)) for _ in range(2))
        assert torch.equal(first, second)
        with torch.no_grad():
            expected = taken(naive_logits(model, (3, 4), (5, 6, 7)).log_softmax(-1), (5, 6, 7))
        assert torch.allclose(first, expected, atol=1e-5)


def test_attention_dropout_is_off_too(place):
    change(place, attention_dropout=0.5)
    policy = load(str(place), checkpointing=True).policy
    assert policy.model.training
    assert torch.equal(logp_of(policy, (3, 4), (5, 6, 7)), logp_of(policy, (3, 4), (5, 6, 7)))


def test_checkpointing_and_adapters_train_a_loaded_model(place):
    """The gradient with activations made again is the gradient without, to the last bit."""
    found = []
    for checkpointing in (False, True):
        policy = load(str(place), dtype="float64", lora=3, checkpointing=checkpointing, seed=4).policy
        (-policy.token_logp(pack([(3, 4)], [[(5, 6, 7), (8, 9)]])).logp.sum()).backward()
        found.append({name: value.grad for name, value in policy.trained()})
    assert found[0] and all("lora_" in name for name in found[0])
    assert any(bool(grad.any()) for grad in found[0].values())
    assert all(torch.equal(grad, found[1][name]) for name, grad in found[0].items())


def test_adapters_begin_at_the_base_and_their_values_are_the_seeds(place):
    plain, adapted = load(str(place)), load(str(place), lora=2, seed=1)
    assert adapted.digest == plain.digest
    assert torch.equal(logp_of(adapted.policy, (3,), (4, 5)), logp_of(plain.policy, (3,), (4, 5)))
    again, other = (dict(load(str(place), lora=2, seed=seed).policy.trained()) for seed in (1, 2))
    first = dict(adapted.policy.trained())
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert any(not torch.equal(value, other[name]) for name, value in first.items())


def test_a_quantization_that_was_undone_is_no_longer_declared(place, monkeypatch):
    """Left in the settings, a saved model would be read as quantized."""
    import transformers

    real = transformers.AutoModelForCausalLM.from_pretrained

    def quantized(*args: Any, **kwargs: Any) -> Any:
        model, found = real(*args, **kwargs)
        model.config.quantization_config = {"quant_method": "gguf"}
        return model, found

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", quantized)
    assert not hasattr(load(str(place)).policy.causal.config, "quantization_config")


def test_a_package_that_ships_a_model_is_one(place, monkeypatch):
    (place / "__init__.py").write_text("raise RuntimeError('a package of weights is not imported')")
    home = place.parent / "site"
    home.mkdir()
    place.rename(home / "shipped_model")
    monkeypatch.syspath_prepend(home)
    assert load("package:shipped_model").context == 64
    assert "shipped_model" not in sys.modules


@pytest.mark.parametrize("name", ["package:no_such_package_here", "package:json.decoder", "package:", "package:a b"])
def test_a_package_that_is_none_is_named(name):
    with pytest.raises(ConfigError, match="no such package is installed"):
        load(name)


def test_a_package_without_a_model_says_what_it_ships(tmp_path, monkeypatch):
    home = tmp_path / "empty_model"
    home.mkdir()
    (home / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="it ships 0 .gguf files and no config.json"):
        load("package:empty_model")


def windowed(tmp_path: Path, kind: str) -> Path:
    from transformers import AutoModelForCausalLM, MistralConfig, Qwen2Config

    configs = {
        "every layer": MistralConfig(vocab_size=272, sliding_window=8, **WIDE),
        "some layers": Qwen2Config(
            vocab_size=272, sliding_window=8, use_sliding_window=True, max_window_layers=1, **WIDE
        ),
    }
    return saved(AutoModelForCausalLM.from_config(configs[kind]), tmp_path / "model")


@pytest.mark.parametrize("kind", ["every layer", "some layers"])
def test_a_sliding_window_is_the_context_and_nothing_longer_is_read(kind, tmp_path):
    loaded = load(str(windowed(tmp_path, kind)))
    assert loaded.context == 8
    assert logp_of(loaded.policy, (3,) * 5, (4,) * 4).shape == (4,)  # the last token is not read
    with pytest.raises(InputError, match="9 tokens are longer than the model's sliding window of 8"):
        logp_of(loaded.policy, (3,) * 5, (4,) * 5)


def test_a_prompt_that_leaves_no_room_for_a_response_is_refused(place):
    codec = Codec(load(str(place)).tokenizer)
    problems = [TextProblem(7, "1+2=" * 3)]
    length = len(codec.prompt(problems[0].prompt))
    assert len(encode(codec, problems, longest=length)[0]) == length
    with pytest.raises(ConfigError, match=f"problem 7: its prompt has {length} tokens and {length - 1} fit"):
        encode(codec, problems, longest=length - 1)


def test_an_architecture_with_an_attention_of_its_own_is_refused(tmp_path):
    """Bloom takes our name and never calls us: its responses would read each other."""
    from transformers import AutoModelForCausalLM, BloomConfig

    model = AutoModelForCausalLM.from_config(BloomConfig(vocab_size=272, hidden_size=16, n_layer=2, n_head=2))
    with pytest.raises(ConfigError, match="BloomForCausalLM says something else of a packed row"):
        load(str(saved(model, tmp_path / "model")))


def test_attention_with_more_than_a_softmax_is_refused(tmp_path):
    from transformers import AutoModelForCausalLM, Gemma2Config

    given = {**WIDE, "head_dim": 8, "vocab_size": 272, "pad_token_id": 2}
    model = AutoModelForCausalLM.from_config(Gemma2Config(**given))
    with pytest.raises(ConfigError, match="Gemma2ForCausalLM cannot read a packed row .*attention with softcap"):
        load(str(saved(model, tmp_path / "model")))


def test_a_model_outside_its_policy_is_not_read_without_a_layout():
    with pytest.raises(InputError, match="called without a layout"):
        tiny_causal()(input_ids=torch.tensor([[3, 4]]))
    assert register() == "assay_shared"
    assert Packed(pack([(3, 4)], [[(5, 6)]])).longest == 3
