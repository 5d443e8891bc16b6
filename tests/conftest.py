"""Finished runs to read, copies to harm, and the command as a process of its own."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import assay


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Compute on one thread, as the plan fixes: on tensors this small, more of them only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def small() -> dict[str, Any]:
    """A recipe that takes a moment and still has two phases, several checkpoints and clipped gradients."""
    return {
        "save_steps": 5,
        "warmup": {"steps": 20},
        "rl": {"steps": 12},
        "evaluation": {"samples": 100, "every": 4},
    }


@pytest.fixture(scope="session")
def finished(small: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished small run, to be read only."""
    return assay.train(small, tmp_path_factory.mktemp("finished") / "run").directory


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to be harmed."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture(scope="session")
def content() -> Callable[[Path], dict[str, bytes]]:
    """Return a function that reads a whole directory: relative path to bytes, or to the kind of what is no file."""

    def read(directory: Path) -> dict[str, bytes]:
        paths = sorted(directory.rglob("*"))
        return {
            str(path.relative_to(directory)): path.read_bytes()
            if stat.S_ISREG(path.lstat().st_mode)
            else str(stat.S_IFMT(path.lstat().st_mode)).encode()
            for path in paths
        }

    return read


@pytest.fixture(scope="session")
def process() -> Callable[..., subprocess.Popen[str]]:
    """Return a function that starts ``python ARGUMENTS`` with its output piped; it imports the package under test."""
    environment = {**os.environ, "PYTHONPATH": str(Path(assay.__file__).parent.parent)}

    def start(*arguments: object, executable: object = sys.executable, **variables: str) -> subprocess.Popen[str]:
        command = [str(executable), *map(str, arguments)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env={**environment, **variables})

    return start
