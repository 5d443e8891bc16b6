"""Tests of other people's libraries: run by ``make test-peers`` in an environment that holds them, and only then.

A plain test run does not collect this directory. Asked for by path or by ``-m peers``, a module whose library is
missing is skipped and says so.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

LIBRARIES = ("trl", "verl", "openrlhf")
"""A module's name begins with the library that it runs, as ``test_trl_trainer`` does."""
HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "peers: runs the code of another library; `make test-peers`")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this directory out unless it is asked for."""
    asked = "peers" in config.getoption("markexpr") or any("peers" in Path(arg).parts for arg in config.args)
    return None if asked else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark these tests, and skip those whose library is missing."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("peers")
            library = item.path.stem.split("_")[1]
            assert library in LIBRARIES, item.path.name
            if importlib.util.find_spec(library) is None:
                item.add_marker(pytest.mark.skip(reason=f"{library} is not installed; make test-peers has it"))


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny tensors are many times slower when threads contend."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
