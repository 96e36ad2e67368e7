"""Bounded stores that untrusted owners share fairly: an owner that floods one displaces its own items.

    add ──▶ over its owner's share?   the owner's oldest leaves
        ──▶ over the bytes or items?  the oldest of the owner with the most leaves; a tie goes against the adding owner

Pure and not thread-safe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from itertools import count
from typing import Generic, Literal, TypeVar

from msgspec import Struct, field

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Limit = Literal["share", "bytes", "items"]
"""The limit for which an item was evicted."""


class Share(Struct, frozen=True):
    """Limits of each owner; one item is always within them."""

    max_items: float = math.inf
    max_bytes: float = math.inf


class _Owner(Struct, Generic[Key]):
    line: dict[Key, None] = field(default_factory=dict)
    """Keys of the items that can be evicted, oldest first."""
    num_pinned: int = 0
    num_bytes: int = 0


class _Entry(Struct, Generic[Value]):
    value: Value
    num_bytes: int
    owners: tuple[str, ...]
    is_pinned: bool = False


class FairStore(Generic[Key, Value]):
    """Values by key in order of arrival, each charged to one owner per level.

    There is a level for each of `shares`, by default a single one without limits. Owners of the first level compete for
    the whole store; those of further levels only have their share. A store of groups may have accounts as its first
    level and peers as its second: many unknown peers have one account.

    >>> store = FairStore[str, str](3)
    >>> [store.add(key, key, "flood") for key in "abc"], store.add("d", "d", "other")
    ([[], [], []], [('a', 'items')])
    """

    def __init__(
        self, max_items: float = math.inf, max_bytes: float = math.inf, *shares: Share, prefers_new: bool = False
    ) -> None:
        """An empty store. Pinned items count in `max_bytes` and in shares, but not in `max_items`.

        `prefers_new`: a tie between owners with the most goes against the one that came first, so that new items enter
        a full store of owners with one item each.
        """
        self._prefers_new = prefers_new
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._shares = shares or (Share(),)
        self._levels: tuple[dict[str, _Owner[Key]], ...] = tuple({} for _ in self._shares)
        self._entries: dict[Key, _Entry[Value]] = {}
        self._num_pinned = 0
        self._num_bytes = 0

    def __len__(self) -> int:
        """Items held, pinned ones included."""
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        """Whether an item is held."""
        return key in self._entries

    def __iter__(self) -> Iterator[Key]:
        """Keys, oldest first."""
        return iter(self._entries)

    def __reversed__(self) -> Iterator[Key]:
        """Keys, newest first."""
        return reversed(self._entries)

    def __getitem__(self, key: Key) -> Value:
        """The value. Raises `KeyError`."""
        return self._entries[key].value

    def get(self, key: Key) -> Value | None:
        """The value; None if it is not held."""
        entry = self._entries.get(key)
        return None if entry is None else entry.value

    def values(self) -> list[Value]:
        """All values, oldest first."""
        return [entry.value for entry in self._entries.values()]

    @property
    def num_bytes(self) -> int:
        """Sum of the charged bytes."""
        return self._num_bytes

    def has_room(self, num_bytes: int = 0) -> bool:
        """Whether an item of this size can be added before the whole store is full, whoever owns it."""
        return self._num_waiting < self._max_items and self._num_bytes + num_bytes <= self._max_bytes

    def add(
        self, key: Key, value: Value, *owners: str, num_bytes: int = 0, is_pinned: bool = False
    ) -> list[tuple[Value, Limit]]:
        """Add an item charged to `owners`, one per level; the default is a common owner. `is_pinned`: as by `pin`.

        An item with the same key is replaced. Returns the items that left for this one and why, in that order; this
        item itself may be among them. An item larger than the whole store evicts nothing.

        Raises `ValueError` if the number of owners is not that of the levels.
        """
        owners = owners or ("",) * len(self._levels)
        if len(owners) != len(self._levels):
            raise ValueError(f"the store has {len(self._levels)} levels of owners, got {len(owners)}")
        if key in self._entries:
            self.pop(key)
        if num_bytes > self._max_bytes:
            return [(value, "bytes")]
        self._entries[key] = _Entry(value, num_bytes, owners)
        self._num_bytes += num_bytes
        for level, owner in zip(self._levels, owners, strict=True):
            owned = level.setdefault(owner, _Owner())
            owned.line[key] = None
            owned.num_bytes += num_bytes
        if is_pinned:
            self.pin(key)
        return list(self._evict_for(key, owners))

    def pop(self, key: Key) -> Value:
        """Remove and return an item. Raises `KeyError`."""
        entry = self._entries.pop(key)
        self._num_bytes -= entry.num_bytes
        self._num_pinned -= entry.is_pinned
        for level, owner in zip(self._levels, entry.owners, strict=True):
            owned = level[owner]
            owned.num_bytes -= entry.num_bytes
            owned.num_pinned -= entry.is_pinned
            owned.line.pop(key, None)
            if not owned.line and not owned.num_pinned:
                del level[owner]
        return entry.value

    def pop_next(self) -> Value | None:
        """Remove and return the oldest item of the owner whose turn it is, round-robin over the first level.

        Pinned items have no turn; None if there are no others.
        """
        owners = self._levels[0]
        owner = next((name for name, owned in owners.items() if owned.line), None)
        if owner is None:
            return None
        value = self.pop(next(iter(owners[owner].line)))
        if owner in owners:
            owners[owner] = owners.pop(owner)
        return value

    def pin(self, key: Key) -> Value:
        """Keep an item until it is popped: it stays charged but is not evicted. Returns it. Raises `KeyError`."""
        entry = self._entries[key]
        if not entry.is_pinned:
            entry.is_pinned = True
            self._num_pinned += 1
            for level, owner in zip(self._levels, entry.owners, strict=True):
                level[owner].num_pinned += 1
                del level[owner].line[key]
        return entry.value

    def clear(self) -> None:
        """Remove all items."""
        for level in self._levels:
            level.clear()
        self._entries.clear()
        self._num_pinned = self._num_bytes = 0

    def charge(self, owners_of: Callable[[Value], tuple[str, ...]]) -> None:
        """Charge every item to other owners, one per level; evicts nothing."""
        for level in self._levels:
            level.clear()
        for key, entry in self._entries.items():
            entry.owners = owners_of(entry.value)
            for level, owner in zip(self._levels, entry.owners, strict=True):
                owned = level.setdefault(owner, _Owner())
                owned.num_bytes += entry.num_bytes
                owned.num_pinned += entry.is_pinned
                if not entry.is_pinned:
                    owned.line[key] = None

    @property
    def _num_waiting(self) -> int:
        return len(self._entries) - self._num_pinned

    def _evict_for(self, new: Key, owners: tuple[str, ...]) -> Iterator[tuple[Value, Limit]]:
        """Evict until all limits hold, the shares of the last level first."""
        for share, level, owner in reversed(tuple(zip(self._shares, self._levels, owners, strict=True))):
            while new in self._entries and _exceeds(level[owner], share):
                yield self._evict(level[owner], new), "share"
        while self._num_bytes > self._max_bytes:
            yield self._evict(self._largest(owners[0], lambda owned: owned.num_bytes), new), "bytes"
        while self._num_waiting > self._max_items:
            yield self._evict(self._largest(owners[0], lambda owned: len(owned.line)), new), "items"

    def _largest(self, adding: str, size: Callable[[_Owner[Key]], int]) -> _Owner[Key]:
        owners = self._levels[0]
        most = max(owners.values(), key=size)
        own = owners.get(adding, most)
        return own if size(own) == size(most) and not self._prefers_new else most

    def _evict(self, owned: _Owner[Key], new: Key) -> Value:
        """Remove an owner's oldest item, or the new one if the owner has only pinned ones."""
        return self.pop(next(iter(owned.line), new))


def _exceeds(owned: _Owner[Key], share: Share) -> bool:
    num_items = len(owned.line) + owned.num_pinned
    return num_items > 1 and (num_items > share.max_items or owned.num_bytes > share.max_bytes)


class FairQueue(Generic[Value]):
    """A queue that serves its senders in turn; when it is full, the sender with the most loses its oldest item."""

    def __init__(self, max_items: int) -> None:
        self._items = FairStore[int, Value](max_items)
        self._numbers = count()

    def __len__(self) -> int:
        """Items queued."""
        return len(self._items)

    def put(self, sender: str, item: Value) -> Value | None:
        """Append an item; returns the one that was dropped for it, if any, which may be itself."""
        dropped = self._items.add(next(self._numbers), item, sender)
        return dropped[0][0] if dropped else None

    def get(self) -> Value | None:
        """Remove and return the oldest item of the next sender; None if the queue is empty."""
        return self._items.pop_next()

    def clear(self) -> None:
        """Drop all items."""
        self._items.clear()
