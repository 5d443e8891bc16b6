"""Run by ``test_disk.py`` in a mount namespace of its own: what the command does on a disk that is full or read-only.

``full_disk.py PLACE`` finds a finished run at ``PLACE/finished`` and prints a JSON record of what it saw.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import assay
from assay.cli import boundary, main
from assay.errors import Interrupted

FULL = ("8k", "32k", "64k", "112k", "160k")
"""Sizes of a disk on which the run stops at one file after the other."""


def mounted(place: Path, options: str) -> Path:
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True)
    return place


def remounted(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", place], check=True)


def said(work: Any) -> dict[str, Any]:
    """Return the exit code of some work and what it wrote to standard error."""
    complaint = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(complaint):
        return {"code": work(), "stderr": complaint.getvalue()}


def command(*arguments: object) -> dict[str, Any]:
    return said(lambda: main([str(argument) for argument in arguments]))


def train_on_a_disk_of(size: str, recipe: Path, place: Path) -> dict[str, Any]:
    """Train until the disk is full, make it larger, and finish."""
    run = mounted(place / size, f"size={size}") / "run"
    full = command("train", recipe, "--output", run)
    left = sorted(path.name for path in run.iterdir()) if run.exists() else None
    remounted(place / size, "size=16m")
    freed = command("train", "--resume", run) if run.exists() else command("train", recipe, "--output", run)
    shutil.copytree(run, place / f"after-{size}")
    return {"full": full, "left": left, "freed": freed}


def train_while_the_disk_fills(recipe: Path, place: Path) -> dict[str, Any]:
    """Fill the disk in the middle of RL, where no checkpoint is due, so that the history is what has no room."""
    disk = mounted(place / "filling", "size=1m")
    settings = assay.Recipe.model_validate({**json.loads(recipe.read_text()), "save_steps": 1000})

    def fill(record: dict[str, Any]) -> None:
        if (record["phase"], record["step"]) == ("rl", 3):
            with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
                while ballast.write(bytes(4096)):
                    pass

    full = said(lambda: boundary(lambda: int(assay.train(settings, disk / "run", on_step=fill) is None)))
    (disk / "ballast").unlink()
    freed = command("train", "--resume", disk / "run")
    shutil.copytree(disk / "run", place / "after-filling")
    assay.train(settings, place / "never-full")
    return {"full": full, "freed": freed}


def work_on_a_read_only_disk(recipe: Path, place: Path) -> dict[str, Any]:
    disk = mounted(place / "read-only", "size=16m")
    shutil.copytree(place / "finished", disk / "finished")
    with contextlib.suppress(Interrupted):
        assay.train(recipe, disk / "unfinished", stopping=lambda: True)
    remounted(disk, "ro")
    writing = {
        "train": ("train", recipe, "--output", disk / "new"),
        "resume": ("train", "--resume", disk / "unfinished"),
        "report": ("report", disk / "finished", "--to", disk / "page.html"),
        "audit": ("audit", "seed", "--output", disk / "audit.json"),
    }
    reading = {
        "evaluate": ("evaluate", "--output", disk / "finished"),
        "verify": ("verify", disk / "finished"),
        "compare": ("compare", disk / "finished", disk / "finished"),
        "report": ("report", disk / "finished"),
    }
    return {
        kind: {name: command(*arguments) for name, arguments in commands.items()}
        for kind, commands in (("writing", writing), ("reading", reading))
    }


if __name__ == "__main__":
    here = Path(sys.argv[1])
    toml = here / "finished" / "config.toml"
    seen = {
        "sizes": {size: train_on_a_disk_of(size, toml, here) for size in FULL},
        "filling": train_while_the_disk_fills(here / "recipe.json", here),
        "read-only": work_on_a_read_only_disk(toml, here),
    }
    print(json.dumps(seen))
