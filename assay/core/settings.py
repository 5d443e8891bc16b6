"""The settings of a named algorithm, and where a KL penalty can enter. Every one is live or refused."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from assay.errors import ConfigError

Value = float | int | bool | str


@dataclass(frozen=True)
class Settings:
    """What can be set. Which of these an algorithm reads is in its ``live``; setting another one is an error.

    Attributes:
        beta: weight of the KL penalty, in reward per nat.
        kl: where the penalty enters, one of :data:`PLACEMENTS`.
        entropy: weight of the entropy bonus, in reward per nat.
        overlong_length: response length from which the overlong penalty is -1; 0 for no penalty.
        overlong_cache: tokens below that over which it grows.
        dynamic_sampling: whether groups of one reward are dropped from every count.
        eps: added to a standard deviation.
        clip_low: how far below 1 a ratio may fall before its gradient is cut.
        clip_high: how far above 1 it may rise.
        dual_clip: largest ratio that still counts against a token of negative advantage.
        weight_low: smallest importance weight, an absolute number.
        weight_high: largest importance weight, an absolute number.
        level: whether an importance weight is that of a ``"token"`` or of the whole ``"sequence"``.
        k: tries of pass@k.
        length: the constant that divides every sum over tokens.
    """

    beta: float = 0.0
    kl: str = "none"
    entropy: float = 0.0
    overlong_length: int = 0
    overlong_cache: int = 0
    dynamic_sampling: bool = False
    eps: float = 1e-6
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 3.0
    weight_low: float = 0.0
    weight_high: float = 2.0
    level: str = "token"
    k: int = 2
    length: int = 1


COMMON = ("beta", "kl", "entropy", "overlong_length", "overlong_cache")
"""Settings that every algorithm reads."""

CHOICES = {"level": ("token", "sequence")}

_RANGES: dict[str, tuple[float, float]] = {
    "beta": (0.0, math.inf),
    "entropy": (-math.inf, math.inf),
    "overlong_length": (0, math.inf),
    "overlong_cache": (0, math.inf),
    "eps": (0.0, math.inf),
    "clip_low": (0.0, 1.0),
    "clip_high": (0.0, math.inf),
    "dual_clip": (1.0, math.inf),
    "weight_low": (0.0, 1.0),
    "weight_high": (1.0, math.inf),
    "k": (1, math.inf),
    "length": (1, math.inf),
}


@dataclass(frozen=True)
class Placement:
    """Where a KL penalty enters, and what it ascends on-policy.

    Attributes:
        field: the KL whose gradient it descends, by its name in :data:`assay.tree.fields.FIELDS`; None for nothing.
        own_weights: whether it is averaged as the algorithm averages tokens; otherwise by token sums.
        on_policy: the same in words, to follow "The penalty".
        off_policy: what it does under another sampler, to follow "; off-policy".
        logits: whether it needs all logits and not the sampled token's alone.
    """

    field: str | None
    own_weights: bool
    on_policy: str
    off_policy: str
    logits: bool = False


_FROZEN = "the KL(policy ‖ reference) at each state, with the visits to states held fixed"
_SEQUENCE = "the KL(policy ‖ reference) of the whole response"
_NOTHING = "has an expected gradient of exactly zero"
_STRAYS = "it pushes probability away from what the sampler drew"
_STAYS = "the same, at the states that the sampler visits"
_WEIGHED = "each log-ratio counts by the sampler's probabilities, and it is the gradient of no such KL"
_OTHER_WAY = "descends the KL the other way round, KL(reference ‖ policy)"

PLACEMENTS: dict[str, Placement] = {
    "reward": Placement("kl", True, "", ""),
    "reward_to_go": Placement("kl", True, f"descends {_SEQUENCE}", "it is a part of the advantage"),
    "k1_loss": Placement(None, True, _NOTHING, _STRAYS),
    "k2_loss": Placement("frozen_kl", True, f"descends {_FROZEN}", _WEIGHED),
    "k3_loss": Placement(
        "frozen_forward_kl", True, f"{_OTHER_WAY}, at each state, with the visits held fixed", _WEIGHED
    ),
    "k3_ratio_loss": Placement("frozen_kl", True, f"descends {_FROZEN}", _STAYS),
    "k3_k2_loss": Placement("frozen_kl", True, f"is logged as k3 and descends {_FROZEN}", _WEIGHED),
    "exact_token_loss": Placement("frozen_kl", True, f"descends {_FROZEN}", _STAYS, logits=True),
    "k1_sequence_loss": Placement(None, False, _NOTHING, _STRAYS),
    "k2_sequence_loss": Placement("kl", False, f"descends {_SEQUENCE}", _WEIGHED),
    "k3_sequence_loss": Placement("forward_kl", False, f"{_OTHER_WAY}, of the whole response", _WEIGHED),
    "k3_ratio_sequence_loss": Placement("kl", False, f"descends {_SEQUENCE}", "the same"),
    "exact_sequence_loss": Placement("kl", False, f"descends {_SEQUENCE}", "the same", logits=True),
}
"""Where a KL penalty can enter, besides ``"none"``. ``reward`` and ``reward_to_go`` are k1, detached, in the return."""


def settle(name: str, defaults: Settings, reads: tuple[str, ...], given: Mapping[str, Value]) -> Settings:
    """Return an algorithm's settings with some of them given.

    Args:
        name: of the algorithm, for messages.
        defaults: its own.
        reads: names that it reads.
        given: values by name; a string is parsed as the type of its default.

    Raises:
        ConfigError: a name is unknown or read by nothing here, a value has another type, is out of range or
            contradicts another one, or a coefficient can do nothing.
    """
    for key in given:
        if key not in reads:
            known = {entry.name for entry in dataclasses.fields(Settings)}
            why = f"{name} does not read it" if key in known else "unknown setting"
            raise ConfigError(f"{key} = {given[key]}: {why}; {name} has {', '.join(reads)}")
    parsed: dict[str, Any] = {key: _parsed(defaults, key, value) for key, value in given.items()}
    made = dataclasses.replace(defaults, **parsed)
    _check_kl(made)
    if made.dynamic_sampling and (made.kl != "none" or made.entropy):
        raise ConfigError(
            "dynamic_sampling = true drops groups by their rewards, and with them their KL and entropy, which would "
            "then be those of informative groups alone; set kl = none and entropy = 0, or dynamic_sampling = false"
        )
    if bool(made.overlong_length) != bool(made.overlong_cache) or made.overlong_cache > made.overlong_length:
        raise ConfigError(
            f"overlong_length = {made.overlong_length}, overlong_cache = {made.overlong_cache}: give both, the cache "
            "no larger than the length, or leave both 0"
        )
    return made


def _check_kl(made: Settings) -> None:
    if made.kl != "none" and made.kl not in PLACEMENTS:
        raise ConfigError(f"kl = {made.kl}: a KL penalty can enter as none, {', '.join(PLACEMENTS)}")
    if made.kl == "none" and made.beta:
        raise ConfigError(
            f"beta = {made.beta} can do nothing while kl = none; set kl to one of {', '.join(PLACEMENTS)}"
        )
    if made.kl != "none" and not made.beta:
        raise ConfigError(f"kl = {made.kl} can do nothing while beta = 0; set beta, or kl = none")


def _parsed(defaults: Settings, key: str, value: Value) -> Value:
    """Return a value as the type of its default, in its range."""
    kind = type(getattr(defaults, key))
    made = _of_kind(kind, value)
    if made is None:
        raise ConfigError(f"{key} = {value}: expected {'true or false' if kind is bool else f'a {kind.__name__}'}")
    if key in CHOICES and made not in CHOICES[key]:
        raise ConfigError(f"{key} = {value}: expected one of {', '.join(CHOICES[key])}")
    low, high = _RANGES.get(key, (-math.inf, math.inf))
    if isinstance(made, float | int) and not (low <= made <= high and math.isfinite(made)):
        raise ConfigError(f"{key} = {value}: expected a finite number from {low:g} to {high:g}")
    return made


def _of_kind(kind: type, value: Value) -> Value | None:
    """Return the value as a kind, or None where it is not one."""
    if kind is str:
        return value if isinstance(value, str) else None
    if kind is bool:
        return value if isinstance(value, bool) else {"true": True, "false": False}.get(str(value).lower())
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
        return number if kind is float else int(value) if number == int(number) else None
    except (ValueError, OverflowError):
        return None
