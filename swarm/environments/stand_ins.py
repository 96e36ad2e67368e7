"""Stand-ins for libraries that another library imports and a worker never uses."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


class _StandIn(ModuleType):
    """Has every name, for `from it import name`."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@contextmanager
def stand_ins(names: tuple[str, ...]) -> Iterator[None]:
    """Modules that the block imports find stand-ins instead of these, unless they are imported already."""
    added = {name: _StandIn(name) for name in names if name not in sys.modules}
    sys.modules.update(added)
    try:
        yield
    finally:
        for name in added:
            del sys.modules[name]
