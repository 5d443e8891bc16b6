"""How many threads torch computes on: one. Plans fix it, and a second thread makes tensors this small slower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

THREADS = 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread; the old count is restored afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(before)
