"""The tables of the recipe's page, as lines of Markdown, from the recipe itself."""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from assay.core.algorithms import ALGORITHMS
from assay.core.settings import PLACEMENTS
from assay.training.language.algorithm import RENAMED, penalty
from assay.training.language.options import RLOptions
from assay.training.language.recipe import LanguageRecipe
from assay.training.language.trl_names import TRL_NAMES

_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_KINDS = {int: "whole", float: "real", bool: "true or false", str: "text"}


def settings_table() -> list[str]:
    """Return every setting, a heading and a table for each section."""
    top = {name: field for name, field in LanguageRecipe.model_fields.items() if not _section(field)}
    lines = _table(top, "")
    for name, field in LanguageRecipe.model_fields.items():
        section = _section(field)
        if section is not None:
            lines += ["", f"**`[{name}]`** {section.__doc__}", "", *_table(section.model_fields, f"{name}.")]
    return lines


def trl_table() -> list[str]:
    """Return TRL's names with what they are here."""
    rows = ["| TRL | here | same meaning? | what differs |", "|---|---|---|---|"]
    for name, made in TRL_NAMES.items():
        here = ", ".join(f"`{setting}`" for setting in made.here) or "nothing"
        rows.append(f"| `{name}` | {here} | {'no' if made.differs else 'yes'} | {made.differs} |")
    return rows


def algorithms_table() -> list[str]:
    """Return the algorithms: what each ascends on-policy, the settings of its own, its KL by default."""
    recipe_name = {core: name for name, core in RENAMED.items()}
    rows = [
        "| algorithm | on-policy, the expected update is | its own settings | KL by default | source |",
        "|---|---|---|---|---|",
    ]
    for name, algorithm in ALGORITHMS.items():
        what = algorithm.on_policy.format(J="the expected reward", R="reward")
        own = ", ".join(f"`{recipe_name.get(key, key)}`" for key in algorithm.live)
        beta, kl = penalty(RLOptions(algorithm=name), algorithm)
        rows.append(f"| `{name}` | {what} | {own} | {f'{beta:g}, {kl}' if beta else 'none'} | {algorithm.source} |")
    return rows


def placements_table() -> list[str]:
    """Return where a KL penalty can enter, and what it does on-policy under sums over tokens."""
    rows = ["| `rl.kl` | on-policy, the penalty |", "|---|---|"]
    for name, placement in PLACEMENTS.items():
        what = placement.on_policy or "is a part of the return, and treated as the algorithm treats rewards"
        refused = "; refused, since it would be noise alone" if placement.field is None else ""
        rows.append(f"| `{name}` | {what}{refused} |")
    return rows


def _section(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _table(fields: dict[str, FieldInfo], prefix: str) -> list[str]:
    rows = ["| setting | default | values | meaning |", "|---|---|---|---|"]
    for name, field in fields.items():
        default = "needed" if field.is_required() else _default(field.default)
        meaning = " ".join((field.description or "").split())
        rows.append(f"| `{prefix}{name}` | {default} | {_values(field.annotation, field.metadata)} | {meaning} |")
    return rows


def _default(value: Any) -> str:
    if value is None:
        return "absent"
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`" if value != "" else '`""`'


def _values(kind: Any, metadata: list[Any]) -> str:
    """Say which values a setting takes on its own."""
    kind, metadata = _bare(kind, metadata)
    if get_origin(kind) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) is tuple:
        return f"list of {_values(get_args(kind)[0], [])}"
    if get_origin(kind) is dict:
        return "table"
    bounds = [
        f"{sign}\N{NO-BREAK SPACE}{_power(getattr(entry, key))}"
        for key, sign in _BOUNDS.items()
        for entry in metadata
        if getattr(entry, key, None) is not None
    ]
    return ", ".join([_KINDS[kind], *bounds])


def _bare(kind: Any, metadata: list[Any]) -> tuple[Any, list[Any]]:
    """Return a type without its None and its annotations, and these."""
    if get_origin(kind) in (Union, types.UnionType):
        return _bare(next(part for part in get_args(kind) if part is not type(None)), metadata)
    if hasattr(kind, "__metadata__"):
        inside = [entry for one in kind.__metadata__ for entry in getattr(one, "metadata", [one])]
        return _bare(kind.__origin__, [*metadata, *inside])
    return kind, metadata


def _power(value: float) -> str:
    return f"2^{value.bit_length() - 1}" if isinstance(value, int) and value in (2**20, 2**32) else f"{value:g}"
