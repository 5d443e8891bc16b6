"""Between text and tokens: what a prompt becomes, what a response says, and where it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from assay.errors import ConfigError, InputError
from assay.types import Message, Response

TAIL = 16
"""Tokens at the end of a response in which a stop string is looked for, beyond one for each of its bytes."""


class Codec:
    """A tokenizer, and how this task uses it.

    Args:
        tokenizer: of Transformers.
        stop_tokens: tokens that end a response, besides the tokenizer's own end of sequence.
        stop: strings that end a response.
        chat: whether plain prompts are one user's turn of a chat.
        system: what a chat begins with; empty for nothing.

    Raises:
        ConfigError: a chat is asked for and the tokenizer has no chat template, nothing can end a response, or a stop
            string can never be seen.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        stop_tokens: Sequence[int] = (),
        stop: Sequence[str] = (),
        chat: bool = False,
        system: str = "",
    ) -> None:
        self.tokenizer = tokenizer
        self.stop = tuple(stop)
        self.stop_tokens = frozenset({*stop_tokens, tokenizer.eos_token_id} - {None})
        self._chat, self._system = chat, system
        if (chat or system) and not getattr(tokenizer, "chat_template", None):
            raise ConfigError("policy.chat_template = true: the tokenizer has no chat template; set it to false")
        if not self.stop_tokens and not stop:
            raise ConfigError(
                "the tokenizer has no end-of-sequence token; give task.stop a string that ends a response"
            )
        for text, special in ((text, special) for text in stop for special in tokenizer.all_special_tokens):
            if special in text:
                raise ConfigError(
                    f"task.stop = {text!r}: {special} is a special token, which no text shows; leave it out"
                )
        self._reach = TAIL + max((len(text.encode()) for text in stop), default=0)

    def prompt(self, prompt: str | Sequence[Message]) -> tuple[int, ...]:
        """Return the tokens of a prompt, with one beginning-of-sequence token where the model has one.

        A template writes its special tokens itself, so none is added to what it wrote; a plain prompt gets those the
        tokenizer adds, but no end of sequence, after which nothing would be left to say.

        Raises:
            InputError: the prompt has no tokens, or is a chat and the tokenizer has no template.
        """
        ids = self._ids(prompt) if prompt else []
        if not ids:
            raise InputError(f"prompt {prompt!r} has no tokens; every problem needs a prompt")
        return tuple(ids)

    def answer(self, prompt: str | Sequence[Message], answer: str) -> tuple[int, ...]:
        """Return the tokens of a right answer as the model would say it after a prompt, ending included.

        Prompt and answer are tokenized together where that leaves the prompt's tokens as they are, so that a
        tokenizer which joins or splits at the boundary does what it does in running text.
        """
        ending = self.stop[0] if self.stop else ""
        ids = self.tokenizer(answer + ending, add_special_tokens=False).input_ids
        if self._turns(prompt) is None:
            before, whole = self._plain(str(prompt)), self._plain(str(prompt) + answer + ending)
            if whole[: len(before)] == before:
                ids = whole[len(before) :]
        end = self.tokenizer.eos_token_id
        return (*ids, *([] if self.stop else [min(self.stop_tokens) if end is None else end]))

    def response(self, tokens: Sequence[int], *, truncated: bool) -> Response:
        """Return what a response says, without special tokens and without what ended it."""
        text = self._text(tokens)
        ends = [at for at in (text.find(stop) for stop in self.stop) if at >= 0]
        return Response(tuple(tokens), text[: min(ends)] if ends else text, truncated)

    def ended(self, tokens: Sequence[int]) -> bool:
        """Return whether the last token completed a stop string."""
        text = self._text(tokens[-self._reach :])
        return any(stop in text for stop in self.stop)

    def _ids(self, prompt: str | Sequence[Message]) -> list[int]:
        turns = self._turns(prompt)
        if turns is None:
            return self._plain(str(prompt))
        if not getattr(self.tokenizer, "chat_template", None):
            raise InputError("a prompt is a chat, and the tokenizer has no chat template; write it as plain text")
        text = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        ids: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def _turns(self, prompt: str | Sequence[Message]) -> list[dict[str, str]] | None:
        """Return a prompt as the turns of a chat, or None where it is plain text."""
        if isinstance(prompt, str):
            if not self._chat:
                return None
            prompt = [{"role": "user", "content": prompt}]
        turns = [dict(turn) for turn in prompt]
        if self._system and turns[0]["role"] != "system":
            turns.insert(0, {"role": "system", "content": self._system})
        return turns

    def _plain(self, text: str) -> list[int]:
        bare: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids
        bos = self.tokenizer.bos_token
        if bos is not None and text.startswith(bos):
            return bare
        ids: list[int] = self.tokenizer(text).input_ids
        places = (place for place in range(len(ids)) if ids[place : place + len(bare)] == bare)
        return ids[: next(places, len(ids) - len(bare)) + len(bare)]  # what begins it, and nothing that would end it

    def _text(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
