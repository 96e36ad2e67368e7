"""A mapping that is bounded in number."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import ItemsView, Iterator, MutableMapping, ValuesView
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class LruDict(MutableMapping[Key, Value]):
    """At most `capacity` entries, in order of their last use: beyond it the least recently used is evicted.

    Reading and setting an entry are uses; `in` and iteration are not.

    >>> names = LruDict[str, int](2)
    >>> names["a"], names["b"] = 1, 2
    >>> names["a"], names.put("c", 3)
    (1, ('b', 2))
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[Key, Value] = OrderedDict()

    def put(self, key: Key, value: Value) -> tuple[Key, Value] | None:
        """Set an entry; returns the entry that was evicted for it, if any."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        return self._entries.popitem(last=False) if len(self._entries) > self._capacity else None

    def __getitem__(self, key: Key) -> Value:
        """The value, whose entry is now the most recent. Raises `KeyError`."""
        value = self._entries[key]
        self._entries.move_to_end(key)
        return value

    def __setitem__(self, key: Key, value: Value) -> None:
        """Set an entry, and evict another if there are too many."""
        self.put(key, value)

    def __delitem__(self, key: Key) -> None:
        """Remove an entry. Raises `KeyError`."""
        del self._entries[key]

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()

    def __contains__(self, key: object) -> bool:
        """Whether there is an entry; not a use."""
        return key in self._entries

    def __iter__(self) -> Iterator[Key]:
        """Keys, the least recently used first."""
        return iter(self._entries)

    def __len__(self) -> int:
        """Number of entries."""
        return len(self._entries)

    def values(self) -> ValuesView[Value]:
        """Values in the order of the keys; not a use."""
        return self._entries.values()

    def items(self) -> ItemsView[Key, Value]:
        """Entries in the order of the keys; not a use."""
        return self._entries.items()
