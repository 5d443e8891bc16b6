"""What would spoil an export at the end of a run, found before the first step."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from assay.errors import ConfigError
from assay.runs.directory import named_errors
from assay.runs.language.export import check_plain, hiding_quantization, one_line


def check_exportable(model: Any, tokenizer: Any, texts: Iterable[str]) -> None:
    """Refuse a model or a tokenizer that would not come back from its files as it is.

    ``AutoTokenizer`` chooses a class by the kind of model, and for some kinds against what the files say: a tokenizer
    that was not made by it can come back with another way of splitting text.

    Args:
        model: a ``PreTrainedModel`` or a ``PeftModel``.
        tokenizer: that training will use.
        texts: to try it on, such as the prompts; each must give the same tokens afterwards.

    Raises:
        ConfigError: the weights are quantized, the generation config cannot be saved, or the tokenizer comes back as
            another one.
        RunError: there is no temporary directory.
    """
    from transformers import AutoTokenizer

    check_plain(model)
    causal = model.get_base_model() if hasattr(model, "peft_config") else model
    with named_errors(Path("temporary directory")), tempfile.TemporaryDirectory(prefix="assay-export-") as place:
        with hiding_quantization(causal):
            causal.config.save_pretrained(place)
        try:
            causal.generation_config.save_pretrained(place)
        except ValueError as error:
            raise ConfigError(f"the generation config cannot be saved ({one_line(error)}); repair it first") from error
        tokenizer.save_pretrained(place)
        again = AutoTokenizer.from_pretrained(place)
    for text in texts:
        if (before := tokenizer.encode(text)) != (after := again.encode(text)):
            raise ConfigError(
                f"{text[:40]!r} is {len(before)} tokens, and {len(after)} others once it is saved and opened "
                f"as {type(again).__name__}; load it with AutoTokenizer, as others will"
            )
    if again.chat_template != tokenizer.chat_template:
        raise ConfigError("the chat template is another one once the tokenizer is saved and opened; store it beside it")
