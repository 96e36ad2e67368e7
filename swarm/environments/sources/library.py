"""ReasoningGYM, imported without matplotlib, as every process that draws or grades questions imports it.

The library loads cellpylib for one data set, and cellpylib loads matplotlib for pictures that nobody draws: a third of
the processor time of the whole import.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

DRAWING = (
    *("matplotlib", "matplotlib.pyplot", "matplotlib.animation", "matplotlib.collections"),
    *("mpl_toolkits", "mpl_toolkits.mplot3d"),
)
"""What cellpylib imports for its pictures."""


@contextmanager
def _without_drawing() -> Iterator[None]:
    """Within the block, empty modules stand in for matplotlib, unless it is loaded already."""
    if not sys.modules.keys().isdisjoint(DRAWING):
        yield
        return
    sys.modules.update((name, ModuleType(name)) for name in DRAWING)
    vars(sys.modules["mpl_toolkits.mplot3d"])["Axes3D"] = None  # imported by name
    try:
        yield
    finally:
        for name in DRAWING:
            del sys.modules[name]


with _without_drawing():
    from reasoning_gym.factory import DATASETS, create_dataset

__all__ = ["DATASETS", "create_dataset"]
