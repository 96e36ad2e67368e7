"""Misbehaviour of peers that the network observed."""

from __future__ import annotations

from collections import deque

from swarm.net.counters import Counters
from swarm.reasons import Reason

MAX_COMPLAINTS = 256
"""Complaints kept until they are taken."""


class Complaints:
    """Complaints, counted by reason and kept for the peers' accounts. Any thread may add."""

    def __init__(self, counters: Counters) -> None:
        """None yet."""
        self._counters = counters
        self._waiting: deque[tuple[str, Reason]] = deque(maxlen=MAX_COMPLAINTS)

    def add(self, peer_id: str, reason: Reason) -> None:
        """Record a complaint about a peer."""
        self._counters.add(reason)
        self._waiting.append((peer_id, reason))

    def take(self) -> list[tuple[str, Reason]]:
        """(peer id, reason) of complaints since the last call."""
        return [self._waiting.popleft() for _ in range(len(self._waiting))]
