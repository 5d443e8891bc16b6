"""Copies of a run's metrics for the trackers people watch. The record is ``metrics.jsonl``; a mirror may lose a step.

Nothing here can stop or change a run: what a tracker raises is told once on stderr and counted, and the records that it
is given are copies.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from assay.errors import ConfigError
from assay.evidence.files import printable

TENSORBOARD_DIRECTORY = Path("tensorboard")


@dataclass(frozen=True)
class Mirror:
    """One tracker.

    Attributes:
        log: sends numbers by name, at a step.
        finish: closes it.
    """

    log: Callable[[dict[str, float], int], object]
    finish: Callable[[], object]


class Mirrors:
    """All trackers of a run: ``mirrors(record, step)`` for each step, then ``close()``.

    Attributes:
        failures: how often each tracker raised something.
    """

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()
        self._open: dict[str, Mirror] = {}

    def add(self, name: str, start: Callable[[], Mirror]) -> None:
        """Start a tracker; one that cannot start gets nothing."""

        def begin() -> None:
            self._open[name] = start()

        self._attempt(name, begin)

    def __call__(self, record: Mapping[str, Any], step: int) -> None:
        """Send a record's finite numbers, except ``step``, which is the axis of every curve.

        Args:
            record: as in ``metrics.jsonl``.
            step: of the run as a whole, never smaller than the last one: wandb drops what goes back.
        """
        values = scalars({name: value for name, value in record.items() if name != "step"})
        for name, mirror in self._open.items():
            self._attempt(name, partial(mirror.log, dict(values), step))

    def close(self) -> None:
        """Finish each tracker; a second call does nothing."""
        while self._open:
            name, mirror = self._open.popitem()
            self._attempt(name, mirror.finish)

    def _attempt(self, name: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            self.failures[name] += 1
            if self.failures[name] == 1:
                reason = printable(f"{type(error).__name__}: {error}")
                print(f"{name}: {reason}; the run goes on, and metrics.jsonl has every step", file=sys.stderr)


def open_mirrors(names: Sequence[str], project: str, run_name: str, config: Mapping[str, Any]) -> Mirrors:
    """Start the trackers of a run.

    Args:
        names: of ``"trackio"``, ``"tensorboard"`` and ``"wandb"``.
        project: what trackers group runs by.
        run_name: what they call this run. TensorBoard's events go to ``tensorboard/PROJECT/RUN`` here.
        config: the run's settings, shown beside its curves.

    Raises:
        ConfigError: a name is none of these, or its package is not installed. What fails later is only told.
    """
    mirrors = Mirrors()
    starts = {name: _found(name) for name in names}
    for name, start in starts.items():
        mirrors.add(name, partial(start, project, run_name, dict(config)))
    return mirrors


def scalars(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return a record's finite numbers, nested names joined by ``/``; texts, lists, None and NaN are left out."""
    flat: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            flat |= scalars(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and math.isfinite(value):
            flat[f"{prefix}{name}"] = float(value)
    return flat


Start = Callable[[str, str, dict[str, Any]], Mirror]


def _found(name: str) -> Start:
    """Import a tracker's package and return what starts it."""
    if name not in _TRACKERS:
        raise ConfigError(f"tracking.mirrors = {name!r}: no such tracker; choose from {', '.join(_TRACKERS)}")
    try:
        return _TRACKERS[name]()
    except ImportError as error:
        raise ConfigError(
            f"tracking.mirrors = {name!r}: not installed ({printable(str(error))}); pip install 'assay[tracking]'"
        ) from error


def _trackio() -> Start:
    trackio = import_module("trackio")

    def start(project: str, run_name: str, config: dict[str, Any]) -> Mirror:
        trackio.init(
            project, name=run_name, config=config, resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False
        )
        return Mirror(lambda values, step: trackio.log(values, step=step), trackio.finish)

    return start


def _tensorboard() -> Start:
    try:
        writers = import_module("torch.utils.tensorboard")
    except ImportError:
        writers = import_module("tensorboardX")

    def start(project: str, run_name: str, config: dict[str, Any]) -> Mirror:
        writer = writers.SummaryWriter(str(TENSORBOARD_DIRECTORY / project / run_name))

        def log(values: dict[str, float], step: int) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)
            writer.flush()

        return Mirror(log, writer.close)

    return start


def _wandb() -> Start:
    wandb = import_module("wandb")

    def start(project: str, run_name: str, config: dict[str, Any]) -> Mirror:
        run = wandb.init(project=project, name=run_name, config=config, settings={"console": "off"})
        return Mirror(lambda values, step: run.log(values, step=step), run.finish)

    return start


_TRACKERS: dict[str, Callable[[], Start]] = {"trackio": _trackio, "tensorboard": _tensorboard, "wandb": _wandb}
