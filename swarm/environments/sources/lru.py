"""Bounded caches of what sources keep, which a process that runs out of memory can empty together."""

from __future__ import annotations

from typing import Any, TypeVar
from weakref import WeakValueDictionary

from swarm.lru import LruDict

NUM_WITH_MEDIA = 16
"""Questions with images, audio or video that a source keeps: each is asked for again with every completion of its
group."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class LruCache(LruDict[Key, Value]):
    """An `LruDict` that `forget_all` empties."""

    def __init__(self, capacity: int) -> None:
        """An empty cache of at most `capacity` values."""
        super().__init__(capacity)
        _of_this_process[id(self)] = self


_of_this_process: WeakValueDictionary[int, LruCache[Any, Any]] = WeakValueDictionary()


def forget_all() -> None:
    """Empty every cache of this process."""
    for cache in tuple(_of_this_process.values()):
        cache.clear()
