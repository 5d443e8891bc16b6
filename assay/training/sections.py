"""What recipes share: the base of their sections, the ranges of numbers, reading, and one line for what is wrong."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from assay.errors import ConfigError

MOST = 10**6
"""The largest count a setting may have: far beyond what one machine is for."""
Count = Annotated[int, Field(ge=0, le=MOST)]
Positive = Annotated[int, Field(ge=1, le=MOST)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Section(BaseModel):
    """Settings that belong together: frozen, and no key that nothing reads."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


Model = TypeVar("Model", bound=Section)


def read_settings(path: Path) -> dict[str, Any]:
    """Read a TOML file into plain settings.

    Raises:
        ConfigError: the file is missing, unreadable or not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the recipe ({error.strerror}); check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def build(
    model: type[Model], settings: Mapping[str, Any], *, place: str, elsewhere: Mapping[str, str] | None = None
) -> Model:
    """Turn plain settings into a recipe.

    Args:
        model: the recipe's class.
        settings: nested settings; whatever is absent takes its default.
        place: where they come from, for the message.
        elsewhere: what to write instead of keys that other trainers have and the recipe has not, by their last part.

    Raises:
        ConfigError: an unknown key, one that is missing, a value out of range, a contradiction.
    """
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        found = "; ".join(_explain(model, dict(detail), elsewhere or {}) for detail in error.errors())
        raise ConfigError(f"{place}: {found}") from error


def setting_names(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Return every setting by its dotted name."""
    names = []
    for name, field in model.model_fields.items():
        nested = field.annotation
        if isinstance(nested, type) and issubclass(nested, BaseModel):
            names += setting_names(nested, f"{prefix}{name}.")
        else:
            names.append(prefix + name)
    return names


def _explain(model: type[BaseModel], detail: Mapping[str, Any], elsewhere: Mapping[str, str]) -> str:
    """Say one pydantic error as value, place and remedy."""
    name = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return f"unknown setting {name}; {_instead(name, setting_names(model), elsewhere)}"
    if detail["type"] == "missing":
        description = (model.model_fields[name].description if name in model.model_fields else None) or "it is needed"
        return f"{name} is missing; {description[0].lower()}{description[1:].rstrip('.')}"
    if detail["type"] == "value_error":
        error = detail["ctx"]["error"]
        if not isinstance(detail["input"], Mapping):
            return f"{name} = {detail['input']!r}: {error}"
        return f"{name}.{error}" if name else str(error)
    return f"{name} = {detail['input']!r}: {detail['msg'][0].lower()}{detail['msg'][1:]}"


def _instead(name: str, known: list[str], elsewhere: Mapping[str, str]) -> str:
    """Say what to write instead of a key that is not there."""
    last = name.rpartition(".")[2]
    if last in elsewhere:
        return elsewhere[last]
    misplaced = [other for other in known if other.rpartition(".")[2] == last]
    near = misplaced or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else "known settings: " + ", ".join(known)
