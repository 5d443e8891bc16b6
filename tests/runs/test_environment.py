"""What numbers depend on: recorded without a clock, compared entry by entry, one thread while computing."""

import platform
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

import assay
from assay.evidence.digest import source_digest
from assay.runs.environment import describe_environment, differences
from assay.threads import one_thread


def test_the_environment_names_source_interpreter_machine_and_packages():
    made = describe_environment()
    assert made == describe_environment()
    assert made["source"] == source_digest(Path(assay.__file__).parent)
    assert (made["python"], made["machine"], made["threads"]) == (platform.python_version(), platform.machine(), 1)
    assert made["packages"]["torch"] == version("torch")


def test_each_entry_that_differs_is_named_with_both_values():
    recorded = {"python": "3.11.1", "machine": "x86_64", "source": "0" * 64, "packages": {"torch": "2.13"}}
    current = {"python": "3.12.0", "machine": "x86_64", "source": "1" * 64, "packages": {"numpy": "2.2"}}
    assert differences(recorded, recorded) == []
    assert differences(recorded, current) == [
        "numpy was absent, is 2.2",
        "python was 3.11.1, is 3.12.0",
        f"source was {'0' * 16}..., is {'1' * 16}...",
        "torch was 2.13, is absent",
    ]


def test_the_thread_count_is_restored_even_after_an_error():
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyboardInterrupt), one_thread():
            assert torch.get_num_threads() == 1
            raise KeyboardInterrupt
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
