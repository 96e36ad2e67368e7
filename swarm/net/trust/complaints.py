"""Misbehaviour of peers that the network observed."""

from __future__ import annotations

import threading

from swarm.net.counters import Counters
from swarm.reasons import Reason

MAX_PEERS = 1_024
"""With complaints that nobody has taken yet."""
MAX_OF_ONE = 256
"""Complaints about one peer, by then: far more than it takes to quarantine it."""


class Complaints:
    """Complaints, counted by reason and kept for the peers' accounts, fair between peers. Any thread may add."""

    def __init__(self, counters: Counters) -> None:
        """None yet."""
        self._counters = counters
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Reason]] = {}
        """By peer."""

    def add(self, peer_id: str, reason: Reason) -> None:
        """Record a complaint about a peer. Of too many peers, those with the fewest are forgotten."""
        self._counters.add(reason)
        with self._lock:
            reasons = self._waiting.setdefault(peer_id, [])
            if len(reasons) < MAX_OF_ONE:
                reasons.append(reason)
            if len(self._waiting) > MAX_PEERS:
                del self._waiting[min(self._waiting, key=lambda each: len(self._waiting[each]))]

    def take(self) -> list[tuple[str, Reason]]:
        """(peer id, reason) of complaints since the last call."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        return [(peer_id, reason) for peer_id, reasons in waiting.items() for reason in reasons]
