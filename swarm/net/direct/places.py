"""Who has the places for links, and who makes room when none is free. Pure.

a connection ──▶ a place, as a stranger ──secret──▶ a place, as a peer ──▶ answered
                      │ ends when others need it         │ ends when the same peer opens another
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

L = TypeVar("L")

MAX_LINKS = 16
"""At a time, with those that have not said who they are. Nobody is let in while as many are about to end."""


class Places(Generic[L]):
    """The links that have a place. Not thread-safe."""

    def __init__(self, end: Callable[[L], None]) -> None:
        """`end` makes the thread of a link stop, which then calls `release`."""
        self._end = end
        self._strangers: dict[L, str] = {}
        """Host by link without a secret yet, oldest first."""
        self._peers: dict[str, L] = {}
        """Link by peer."""
        self._ending: set[L] = set()

    def admit(self, link: L, host: str) -> bool:
        """Whether a stranger's link has a place. The host with the most strangers loses its oldest for it."""
        if len(self._ending) >= MAX_LINKS:
            return False
        if len(self._strangers) + len(self._peers) >= MAX_LINKS:
            if not self._strangers:
                return False
            crowds = Counter(self._strangers.values())
            self._part_with(max(self._strangers, key=lambda each: crowds[self._strangers[each]]))
        self._strangers[link] = host
        return True

    def introduce(self, link: L, peer_id: str) -> bool:
        """Whether the link, which has shown the secret of this peer, still has its place. The peer's earlier one ends:
        no peer needs two."""
        if self._strangers.pop(link, None) is None:
            return False
        if (earlier := self._peers.pop(peer_id, None)) is not None:
            self._part_with(earlier)
        self._peers[peer_id] = link
        return True

    def release(self, link: L) -> None:
        """A link has ended."""
        self._strangers.pop(link, None)
        self._peers = {peer_id: each for peer_id, each in self._peers.items() if each is not link}
        self._ending.discard(link)

    def end_all(self) -> None:
        """End every link."""
        for link in (*self._strangers, *self._peers.values()):
            self._part_with(link)

    def _part_with(self, link: L) -> None:
        self._strangers.pop(link, None)
        self._ending.add(link)
        self._end(link)
