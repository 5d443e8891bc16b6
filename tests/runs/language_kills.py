"""Run by ``test_language_layout.py``: replaces a directory in forked processes that die before one system call.

``language_kills.py PLACE`` prints a JSON list: for each call before which a process died, what was found after it.
Nothing here has loaded torch, so that forking is cheap and safe.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from assay.runs.language.layout import replacing, settle

CALLS = ("mkdir", "open", "fsync", "rename", "unlink", "rmdir", "write", "close", "scandir", "listdir")
OLD = {"model.safetensors": "old weights", "state.json": "old state", "inner/optimizer": "old moments"}
NEW = {"model.safetensors": "new weights", "state.json": "new state", "extra": "new"}


def fill(folder: Path, content: dict[str, str]) -> None:
    for name, text in content.items():
        (folder / name).parent.mkdir(exist_ok=True)
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT)
        os.write(descriptor, text.encode())
        os.close(descriptor)


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def replace(directory: Path) -> None:
    with replacing(directory) as folder:
        fill(folder, NEW)


def dies(work: Callable[[], object], call: int) -> bool:
    """Do some work in a fork that is ended before its system call of that number; return whether it was."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    count = 0

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def made(*arguments: object, **options: object) -> object:
            nonlocal count
            if count == call:
                os._exit(9)
            count += 1
            return real(*arguments, **options)

        return made

    os.fsync = lambda descriptor: None  # a process that dies loses nothing that it has written
    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    work()
    os._exit(0)


def seen(place: Path, *, first: bool, again: bool) -> list[dict[str, object]]:
    """Return what is found after a death before each call of a replacement, and of the recovery where asked."""
    found, call, more = [], 0, True
    while more:
        directory = place / f"{first}-{again}-{call}" / "checkpoint"
        directory.parent.mkdir()
        if not first:
            directory.mkdir()
            fill(directory, OLD)
        more = dies(partial(replace, directory), call)
        interrupted = 0
        while again and dies(partial(settle, directory), interrupted):
            interrupted += 1
        there = settle(directory)
        beside = [path.name for path in directory.parent.iterdir() if path != directory]
        found.append({"there": there, "content": content(directory) if there else None, "beside": beside})
        call += 1
    return found


if __name__ == "__main__":
    here = Path(sys.argv[1])
    cases = [(first, again) for first in (False, True) for again in (False, True)]
    print(json.dumps([{"first": f, "again": a, "found": seen(here, first=f, again=a)} for f, a in cases]))
