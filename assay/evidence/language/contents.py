"""The files of a language run: some are always there; which shards and tokenizer files a model has varies."""

from __future__ import annotations

import re
from pathlib import Path

from assay.evidence.files import entries, oddity
from assay.evidence.manifest import Contents

FORMAT = "assay-language-run/1"
BUILD_TYPE = "assay:train-language/v1"
DEPTH = 3
"""Levels of directories: ``model/additional_chat_templates/NAME.jinja`` is the deepest."""
SPLITS = ("train", "test")
INPUTS = (
    "config.toml",
    "data.json",
    "data/croissant.json",
    "data/test.jsonl",
    "data/train.jsonl",
    "environment.json",
)
ALWAYS = (
    *INPUTS,
    "checkpoint/optimizer.safetensors",
    "checkpoint/state.json",
    "metrics.jsonl",
    "results.json",
    "samples.jsonl",
)
"""The bound files that every finished run holds."""
WEIGHTS = r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json"
_PLAIN = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_BESIDE = rf"adapter_model\.safetensors|{_PLAIN}\.(json|jinja|md|model|tiktoken|txt)"
_VARYING = re.compile(
    rf"checkpoint/({WEIGHTS})"
    rf"|(model|warmup)/({WEIGHTS}|{_BESIDE})"
    rf"|(model|warmup)/additional_chat_templates/{_PLAIN}\.jinja"
)


def contents_of(place: Path) -> Contents:
    """Return what a language run must hold, given what lies in its directory.

    Its fixed files are named whether they are there or not, model and tokenizer files as found. None of them is code
    or a pickle.

    Raises:
        OSError: the directory cannot be read.
    """
    found = {
        name for name, path in entries(place, depth=DEPTH).items() if _VARYING.fullmatch(name) and not oddity(path)
    }
    return Contents(FORMAT, BUILD_TYPE, INPUTS, tuple(sorted({*ALWAYS, *found})))
