"""From a row of data to a problem: which column is the prompt, which the answer, and what they may hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

from assay.errors import ConfigError
from assay.tasks.rows import Row
from assay.types import Message, TextProblem

ROLES = ("system", "user", "assistant", "tool")


def problem_of(number: int, row: Row, *, prompt_column: str = "prompt", answer_column: str = "answer") -> TextProblem:
    """Return the problem of one row.

    Every other column is passed on as it is. So is the answer's own column where it has another name or holds a number:
    a reward function then gets what it would get from the data.

    Args:
        number: of the problem.
        row: as it was read.
        prompt_column: holds a text, or the messages of a chat.
        answer_column: holds a text, a number (its text is taken) or nothing; a dot enters a column that holds columns,
            as in ``"reward_model.ground_truth"``. The default need not exist.

    Raises:
        ConfigError: a column is missing, the prompt is empty, or a value is of another kind; names the row.
    """
    if prompt_column not in row.values:
        raise ConfigError(f"data {row.place}: no column {prompt_column!r}; it has {', '.join(map(repr, row.values))}")
    prompt = _prompt(row.values[prompt_column], f"data {row.place}: {prompt_column}")
    raw = _answer_value(row, answer_column)
    answer = _answer(raw, f"data {row.place}: {answer_column}")
    told = {prompt_column, "answer"} if answer_column == "answer" and raw in (None, answer) else {prompt_column}
    return TextProblem(number, prompt, answer, {key: row.values[key] for key in row.values if key not in told})


def _answer_value(row: Row, column: str) -> Any:
    """Return what the answer's column holds."""
    if column in row.values:
        return row.values[column]
    value: Any = row.values
    for part in column.split("."):
        if not isinstance(value, Mapping) or part not in value:
            if column == "answer":
                return None
            raise ConfigError(f"data {row.place}: no column {column!r}; it has {', '.join(map(repr, row.values))}")
        value = value[part]
    return value


def _prompt(value: Any, where: str) -> str | tuple[Message, ...]:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        messages = tuple(_message(message, f"{where} message {at}") for at, message in enumerate(value))
        if not messages:
            raise ConfigError(f"{where} is empty; give it at least one message")
        return messages
    return _text(value, where)


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, Mapping) or {key for key in value if value[key] is not None} != {"role", "content"}:
        raise ConfigError(f"{where} is {_short(value)}; expected role and content, and nothing else")
    if value["role"] not in ROLES:
        raise ConfigError(f"{where} has role {value['role']!r}; expected {', '.join(ROLES)}")
    return {"role": value["role"], "content": _text(value["content"], where)}


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{where} is {_short(value)} ({type(value).__name__}); expected text")
    if not value.strip():
        raise ConfigError(f"{where} is empty ({value!r}); leave the row out or give it text")
    return _encodable(value, where)


def _answer(value: Any, where: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        if not value.strip():
            raise ConfigError(f"{where} is empty ({value!r}); leave it out where there is no answer")
        return _encodable(value, where)
    number = None if isinstance(value, bool) else _number(value)
    if number is not None:
        return number
    raise ConfigError(f"{where} is {_short(value)} ({type(value).__name__}); expected text or a finite number")


def _number(value: Any) -> str | None:
    """Return a finite number as text, and None of anything else."""
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real | Decimal) and math.isfinite(value):
        return str(value) if isinstance(value, Decimal) else repr(float(value))
    return None


def _encodable(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{where} holds half a character ({text[error.start]!r}); mend or remove it") from error
    return text


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:50]}..."
