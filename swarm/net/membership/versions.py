"""Which other version of the protocol a node's peers speak: a swarm that splits must say so."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from swarm.errors import Refusal
from swarm.reasons import Reason

HEARD_FOR_S = 600.0
MAX_PEERS = 1_024


class Versions:
    """Thread-safe memory of who was lately understood, and who speaks another major version."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Nobody has been heard."""
        self._clock = clock
        self._lock = threading.Lock()
        self._heard: OrderedDict[str, tuple[float, str]] = OrderedDict()
        """By peer: when it was heard last, and what to do about its version; empty when it was understood."""

    def understood(self, peer_id: str) -> None:
        """A record of this peer could be read."""
        self._note(peer_id, "")

    def refused(self, peer_id: str, refusal: Refusal) -> None:
        """A record of this peer was refused, whatever for."""
        if refusal.reason == Reason.SCHEMA_VERSION:
            self._note(peer_id, refusal.detail)

    def describe(self) -> str:
        """One line, once most of those heard in the last ten minutes speak another version; else empty."""
        with self._lock:
            since = self._clock() - HEARD_FOR_S
            heard = [problem for heard_at, problem in self._heard.values() if heard_at >= since]
        others = [problem for problem in heard if problem]
        if 2 * len(others) <= len(heard):
            return ""
        ((most, _),) = Counter(others).most_common(1)
        return f"{len(others)} of {len(heard)} peers heard lately cannot be understood: {most}"

    def _note(self, peer_id: str, problem: str) -> None:
        with self._lock:
            self._heard[peer_id] = (self._clock(), problem)
            self._heard.move_to_end(peer_id)
            if len(self._heard) > MAX_PEERS:
                self._heard.popitem(last=False)
