"""Stand-ins for packages that OpenRLHF imports and its losses do not use: they need a GPU to install."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

PACKAGES = ("bitsandbytes", "deepspeed", "flash_attn", "vllm")


class _Stub(ModuleType):
    """A module that has an empty class for every name."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Finder(MetaPathFinder, Loader):
    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self._packages:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module empty."""


@contextmanager
def stubs() -> Iterator[None]:
    """Offer empty modules under the names of :data:`PACKAGES` that are not installed, and take them away afterwards."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    finder = _Finder(missing)
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] in missing]:
            del sys.modules[name]
