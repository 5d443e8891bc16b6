"""The weights of a language run: whole files, an index that names what is there, no name twice, nothing quantized."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any

from assay.errors import EvidenceError
from assay.evidence.files import entries_of, local, read_json, read_rows, read_toml
from assay.evidence.tensors import Entry, read_header, tensors_digest

INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_model.safetensors"
BASE = "base_model.json"
_SHARD = re.compile(r"model-(\d{5})-of-(\d{5})\.safetensors")


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold a model's or an adapter's tensors, in order.

    Raises:
        OSError: the directory cannot be read.
    """
    return sorted(path for path in folder.iterdir() if path.name.endswith(".safetensors") and path.stem != "optimizer")


def odd_folder(folder: Path) -> str | None:
    """Say why a path is not a directory of its own; None when it is one."""
    try:
        is_folder = stat.S_ISDIR(folder.lstat().st_mode)
    except FileNotFoundError:
        return "is missing"
    return None if is_folder else "is no directory; not opened"


@entries_of("a file of the weights")
def check_weights(place: Path) -> list[str]:
    """Return what is wrong with the files of the weights, one line a finding."""
    config = read_toml(place / "config.toml")
    adapted = config["lora"] > 0
    folders = ["model"] + ["warmup"] * (config["warmup"]["steps"] > 0)
    findings = []
    if (place / "warmup").exists() and "warmup" not in folders:
        findings.append("warmup: is no part of a run whose config.toml plans no warm-up steps")
    for name in folders:
        findings += _check_export(place / name, adapted)
    findings += _check_folder(place / "checkpoint")
    findings += _attempt(place / "checkpoint" / "optimizer.safetensors")
    return [finding.replace(f"{place}/", "") for finding in findings]


@entries_of("results.json or base_model.json")
def check_digests(place: Path) -> list[str]:
    """Return where the digests in ``results.json`` are not those of the weights, or the reference changed."""
    config, results = read_toml(place / "config.toml"), read_json(place / "results.json")
    digests, rl, adapted = results["digests"], config["rl"], config["lora"] > 0
    findings = []
    for folder, name in [("model", "policy")] + [("warmup", "warmup")] * (config["warmup"]["steps"] > 0):
        if odd_folder(place / folder) or (adapted and not (place / folder / BASE).is_file()):
            continue  # a finding of check_weights
        try:
            found = tensors_digest(weight_files(place / folder))
        except EvidenceError as error:
            findings.append(local(error, place))
            continue
        if digests[name] != found:
            findings.append(f"results.json: digests.{name} is not that of the tensors in {folder}/; one was changed")
        if adapted and read_json(place / folder / BASE)["digest"] != digests["base"]:
            findings.append(f"{folder}/{BASE}: names another base model than results.json")
    if not digests["reference"]:
        return findings + _check_no_reference(place)
    return findings + _check_reference(digests, rl["steps"], config["save_steps"], pinned=_pinned(config, digests))


def _check_no_reference(place: Path) -> list[str]:
    """Without a reference the KL to it is 0 at every step."""
    with entries_of("metrics.jsonl"):
        moved = [row["step"] for row in read_rows(place / "metrics.jsonl") if row["phase"] == "rl" and row["kl"]]
    return [f"results.json: digests.reference is empty, and RL step {step} has a KL to one" for step in moved[:1]]


def _pinned(config: dict[str, Any], digests: dict[str, Any]) -> str | None:
    """Return the digest that the reference must have where nothing was trained before RL."""
    base: str = digests["base"]
    return base if config["warmup"]["steps"] == 0 and config["lora"] == 0 else None


def _check_reference(digests: dict[str, Any], steps: int, save_steps: int, *, pinned: str | None) -> list[str]:
    recorded = digests["reference"]
    saves = {f"step {step}" for step in range(save_steps, steps, save_steps)}
    if missing := sorted({"start", "end", *saves} - set(recorded)):
        return [f"results.json: digests.reference lacks {', '.join(missing)}"]
    if len(set(recorded.values())) != 1:
        return ["results.json: the reference's digest is not the same at the start, every save and the end"]
    if pinned is not None and recorded["start"] != pinned:
        return ["results.json: without a warm-up the reference is the base model, and their digests differ"]
    return []


def _check_export(folder: Path, adapted: bool) -> list[str]:
    """Return what is wrong with a directory in Transformers' layout."""
    if odd := odd_folder(folder):
        return [f"{folder}: {odd}"]
    needed = ("adapter_config.json", BASE) if adapted else ("config.json",)
    findings = [f"{folder / name}: is missing" for name in needed if not (folder / name).is_file()]
    if (folder / "config.json").is_file():
        try:
            settings = read_json(folder / "config.json")
            if not isinstance(settings, dict) or "quantization_config" in settings:
                findings.append(f"{folder / 'config.json'}: speaks of a quantization, and the weights are plain")
        except EvidenceError as error:
            findings.append(str(error))
    if adapted and any(re.match(r"model[-.]", path.name) for path in folder.glob("*.safetensors")):
        findings.append(f"{folder}: holds a whole model beside an adapter")
    return findings + (_attempt(folder / ADAPTER) if adapted else _check_folder(folder))


def _attempt(path: Path) -> list[str]:
    if not path.is_file():
        return [f"{path}: is missing"]
    try:
        read_header(path)
    except EvidenceError as error:
        return [str(error)]
    return []


def _check_folder(folder: Path) -> list[str]:
    """Return what is wrong with a directory of one whole model: its shards, and the index that names them."""
    if odd := odd_folder(folder):
        return [f"{folder}: {odd}"]
    try:
        shards = {path.name: read_header(path) for path in sorted(folder.glob("model*.safetensors"))}
        if (folder / INDEX).exists():
            return _check_index(folder, shards)
    except EvidenceError as error:
        return [str(error)]
    if list(shards) != ["model.safetensors"]:
        return [
            f"{folder}: without {INDEX} it must hold model.safetensors alone, it has {sorted(shards) or 'no such file'}"
        ]
    return []


def _check_index(folder: Path, shards: dict[str, dict[str, Entry]]) -> list[str]:
    index = read_json(folder / INDEX)
    named, total = index["weight_map"], index["metadata"]["total_size"]
    findings = []
    for file in sorted({str(file) for file in named.values()} - set(shards)):
        what = "is missing" if _SHARD.fullmatch(file) else "is no name of a shard; not opened"
        findings.append(f"{folder / INDEX}: names {file!r}, which {what}")
    count = len(shards)
    if sorted(shards) != [f"model-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]:
        findings.append(f"{folder}: its shards are not the numbers 1 to {count} of {count}")
    held = {name: file for file, tensors in shards.items() for name in tensors}
    if len(held) < sum(map(len, shards.values())):
        findings.append(f"{folder}: two shards hold a tensor of one name")
    for name in sorted(set(named) | set(held)):
        if named.get(name) != held.get(name):
            findings.append(f"{folder / INDEX}: {name!r} is in {held.get(name)}, the index says {named.get(name)}")
    size = sum(entry.size for tensors in shards.values() for entry in tensors.values())
    if total != size:
        findings.append(f"{folder / INDEX}: total_size is {total}, the tensors have {size} bytes")
    return findings
