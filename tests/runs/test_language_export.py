"""Weights in Transformers' layout: another process opens them and computes the same, whatever had happened before."""

import json
import shutil
import sys
import warnings
from pathlib import Path

import pytest
import torch
from tiny_language_models import LINES, logits, tiny_adapter, tiny_model, tiny_tokenizer

from assay.core.digest import model_digest
from assay.errors import ConfigError, RunError
from assay.evidence.language import weights
from assay.evidence.language.weights import weight_files
from assay.evidence.tensors import read_header, tensors_digest
from assay.runs.language import export as module
from assay.runs.language.export import Base, export
from assay.runs.language.preflight import check_exportable

pytest.importorskip("peft", reason="needs peft")

BASE = Base("./my-model", "b" * 64)
TYPES = (torch.float32, torch.bfloat16, torch.float64)
KINDS = [(family, tied, dtype) for family in ("gpt2", "llama", "qwen2") for tied in (True, False) for dtype in TYPES]
FULL_DISK = Path(__file__).with_name("language_full_disk.py")

OPEN = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from tiny_language_models import LINES, logits
model, tokenizer = AutoModelForCausalLM.from_pretrained(sys.argv[1]), AutoTokenizer.from_pretrained(sys.argv[1])
tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
chat = tokenizer.apply_chat_template([{"role": "user", "content": LINES[0]}], tokenize=False)
facts = {"tied": tied, "dtype": str(model.dtype), "penalty": model.generation_config.repetition_penalty}
facts |= {"tokens": [tokenizer.encode(line) for line in LINES], "chat": chat, "padding": tokenizer.padding_side}
facts |= {"quantized": getattr(model.config, "quantization_config", None)}
torch.save({"logits": logits(model), **facts}, sys.argv[2])
"""


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture
def place(tmp_path):
    return tmp_path / "model"


def opened(place):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(place)


@pytest.mark.parametrize(("family", "tied", "dtype"), KINDS)
def test_what_is_opened_computes_what_was_trained(family, tied, dtype, tokenizer, place):
    model = tiny_model(family, tied=tied, dtype=dtype)
    digest = export(model, tokenizer, place, base=BASE, max_shard_size="10KB")
    again = opened(place)
    assert torch.equal(logits(again), logits(model))
    assert again.dtype == dtype
    assert (again.get_output_embeddings().weight is again.get_input_embeddings().weight) == tied
    assert digest == model_digest(model) == model_digest(again) == tensors_digest(weight_files(place))


def test_another_process_opens_model_tokenizer_and_generation_config(tokenizer, place, process, tmp_path):
    model = tiny_model("llama", dtype=torch.bfloat16)
    export(model, tokenizer, place, base=BASE, max_shard_size="10KB", card="---\n---\ncard")
    here = str(Path(__file__).parent)
    started = process("-c", f"import sys; sys.path.insert(0, {here!r})\n{OPEN}", place, tmp_path / "seen")
    err = started.communicate()[1]
    assert started.returncode == 0, err
    seen = torch.load(tmp_path / "seen", weights_only=True)
    assert torch.equal(seen.pop("logits"), logits(model))
    assert seen == {
        "tied": True,
        "dtype": "torch.bfloat16",
        "penalty": 1.0625,
        "tokens": [tokenizer.encode(line) for line in LINES],
        "chat": f"<user>{LINES[0]}</s>",
        "padding": "left",
        "quantized": None,
    }
    assert (place / "README.md").read_text() == "---\n---\ncard"


def test_weights_are_split_and_the_index_names_the_shards(tokenizer, place):
    model = tiny_model()
    export(model, tokenizer, place, base=BASE, max_shard_size="10KB")
    files = weight_files(place)
    assert len(files) > 2
    assert all(sum(entry.size for entry in read_header(file).values()) <= 10_000 or len(read_header(file)) == 1
               for file in files)  # fmt: skip
    index = json.loads((place / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(p.numel() * p.element_size() for p in model.parameters())
    assert weights._check_export(place, adapted=False) == []
    export(model, tokenizer, place, base=BASE)
    assert [file.name for file in weight_files(place)] == ["model.safetensors"]
    assert weights._check_export(place, adapted=False) == []


def test_a_tied_head_is_stored_once(tokenizer, place):
    export(tiny_model(tied=True), tokenizer, place, base=BASE)
    assert "lm_head.weight" not in read_header(place / "model.safetensors")
    export(tiny_model(tied=False), tokenizer, place, base=BASE)
    assert "lm_head.weight" in read_header(place / "model.safetensors")


def test_two_exports_of_one_policy_are_the_same_bytes(tokenizer, tmp_path, content):
    for name in ("a", "b"):
        export(tiny_model(), tokenizer, tmp_path / name, base=BASE, card="card")
    assert content(tmp_path / "a") == content(tmp_path / "b")


@pytest.mark.parametrize("kind", [tiny_model, tiny_adapter])
def test_the_model_goes_on_as_it_was(kind, tokenizer, place):
    model = kind()
    before, digest = logits(model), model_digest(model)
    flags = {name: value.requires_grad for name, value in model.named_parameters()}
    export(model.train(), tokenizer, place, base=BASE)
    assert model.training
    assert torch.equal(logits(model.eval()), before)
    assert model_digest(model) == digest
    assert {name: value.requires_grad for name, value in model.named_parameters()} == flags


def test_weights_that_once_came_from_a_quantized_file_are_saved_plain(tokenizer, place):
    """As Transformers leaves a model that it read from a GGUF file; left alone, it refuses to save it."""
    from transformers import GgufConfig
    from transformers.quantizers.quantizer_gguf import GgufHfQuantizer

    model, settings = tiny_model(), GgufConfig()
    model.config.quantization_config = settings
    model.hf_quantizer, model.is_quantized = GgufHfQuantizer(settings), True
    with pytest.raises(ValueError, match="not serializable"):
        model.save_pretrained(place)
    export(model, tokenizer, place, base=BASE)
    assert "quantization_config" not in json.loads((place / "config.json").read_text())
    assert torch.equal(logits(opened(place)), logits(model))
    assert model.config.quantization_config is settings
    assert model.is_quantized


def test_weights_that_are_quantized_are_refused(tokenizer, place):
    model = tiny_model()
    model.extra = torch.nn.Parameter(torch.zeros(2, dtype=torch.int8), requires_grad=False)
    with pytest.raises(ConfigError, match="extra is torch.int8: a quantized model is not exported"):
        export(model, tokenizer, place, base=BASE)
    assert not place.exists()


def test_a_generation_config_that_cannot_be_saved_is_said_and_the_old_export_stays(tokenizer, place):
    export(tiny_model(seed=1), tokenizer, place, base=BASE)
    before = tensors_digest(weight_files(place))
    model = tiny_model(seed=2)
    model.generation_config.temperature = 0.3
    with pytest.raises(ConfigError, match="cannot be saved.*do_sample"):
        export(model, tokenizer, place, base=BASE)
    assert tensors_digest(weight_files(place)) == before
    assert [path.name for path in place.parent.iterdir()] == ["model"]


def test_what_was_written_is_compared_with_what_is_in_memory(tokenizer, place, monkeypatch):
    monkeypatch.setattr(module, "tensors_digest", lambda paths: "0" * 64)
    with pytest.raises(RunError, match="what was written is not what is in memory"):
        export(tiny_model(), tokenizer, place, base=BASE)
    assert not place.exists()


def test_no_progress_bar_is_drawn_over_ours(tokenizer, place, capfd):
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    export(tiny_model(), tokenizer, place, base=BASE, max_shard_size="10KB")
    assert capfd.readouterr() == ("", "")
    assert logging.is_progress_bar_enabled() == shown


def test_an_adapter_opens_on_its_base_and_computes_what_was_trained(tokenizer, place):
    from peft import PeftModel

    model = tiny_adapter()
    digest = export(model, tokenizer, place, base=BASE, card="card")
    base = tiny_model()
    assert not torch.equal(logits(base), logits(model))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)  # peft asks by the old name
        again = PeftModel.from_pretrained(base, place)
    assert torch.equal(logits(again), logits(model))
    assert digest == tensors_digest([place / "adapter_model.safetensors"])
    assert json.loads((place / "base_model.json").read_text()) == {"name": "./my-model", "digest": "b" * 64}
    assert json.loads((place / "adapter_config.json").read_text())["base_model_name_or_path"] == "./my-model"
    assert (place / "README.md").read_text() == "card"
    assert weights._check_export(place, adapted=True) == []
    assert all("lora" in name for name in read_header(place / "adapter_model.safetensors"))


def test_no_template_of_a_card_is_left_beside_an_adapter(tokenizer, place):
    export(tiny_adapter(), tokenizer, place, base=BASE)
    assert not (place / "README.md").exists()


def test_an_adapters_config_is_the_same_in_every_process(tokenizer, place):
    """Python orders a set of names differently in each process, and peft keeps one and writes it as it comes."""
    model = tiny_adapter()
    names = {"q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"}
    model.peft_config["default"].target_modules = names
    export(model, tokenizer, place, base=BASE)
    assert json.loads((place / "adapter_config.json").read_text())["target_modules"] == sorted(names)


def test_what_comes_back_as_it_is_may_be_trained(tokenizer):
    for model in (tiny_model("llama"), tiny_model("gpt2"), tiny_adapter()):
        check_exportable(model, tokenizer, LINES)


def test_a_tokenizer_that_comes_back_as_another_one_is_refused_before_training(tokenizer):
    """Qwen2's own class splits numbers into digits, whatever the files say."""
    assert len(tokenizer.encode("13")) == 1
    with pytest.raises(ConfigError, match=r"'7\+6=13' is 5 tokens, and 6 others once .* as Qwen2Tokenizer"):
        check_exportable(tiny_model("qwen2"), tokenizer, LINES)


def test_what_cannot_be_saved_is_refused_before_training(tokenizer):
    model = tiny_model()
    model.generation_config.temperature = 0.3
    with pytest.raises(ConfigError, match="the generation config cannot be saved"):
        check_exportable(model, tokenizer, LINES)
    model = tiny_model()
    model.extra = torch.nn.Parameter(torch.zeros(2, dtype=torch.int8), requires_grad=False)
    with pytest.raises(ConfigError, match="extra is torch.int8"):
        check_exportable(model, tokenizer, LINES)


def may_mount():
    import subprocess

    try:
        command = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not shutil.which("unshare") or not may_mount(), reason="needs the right to mount a tmpfs")
def test_on_a_disk_that_is_too_small_the_old_export_stays(process, tmp_path):
    worker = process("-rm", sys.executable, FULL_DISK, tmp_path, executable="unshare")
    out, err = worker.communicate()
    assert worker.returncode == 0, err
    seen = json.loads(out)
    failed = [one for one in seen if one["error"]]
    assert len(failed) > 3
    assert len(failed) < len(seen), "one of the disks is large enough"
    for one in failed:
        assert one["error"].endswith("/model: No space left on device; free some space")
        assert one["kept"]
    for one in seen:
        assert one["names"] == ["model"]
        assert one["kept"] == bool(one["error"])
