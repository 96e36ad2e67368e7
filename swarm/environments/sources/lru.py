"""A bounded mapping that evicts the least recently used value."""

from __future__ import annotations

from typing import Any, Generic, TypeVar
from weakref import WeakSet

from swarm.lru import LruDict

NUM_WITH_MEDIA = 16
"""Questions with images, audio or video that a source keeps: each is asked for again with every completion of its
group."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """Holds at most `capacity` values."""

    def __init__(self, capacity: int) -> None:
        """An empty cache."""
        self._values = LruDict[Key, Value](capacity)
        _of_this_process.add(self)

    def get(self, key: Key) -> Value | None:
        """The value, which becomes the most recent, or None."""
        return self._values.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Store a value and evict the oldest beyond the capacity."""
        self._values[key] = value

    def clear(self) -> None:
        """Forget all values."""
        self._values.clear()

    def __len__(self) -> int:
        """Values held."""
        return len(self._values)


_of_this_process: WeakSet[LruCache[Any, Any]] = WeakSet()


def forget_all() -> None:
    """Empty every cache of this process."""
    for cache in tuple(_of_this_process):
        cache.clear()
