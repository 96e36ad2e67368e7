"""Protocol versions of other peers: a split swarm must be reported."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from swarm.errors import Refusal
from swarm.lru import LruDict
from swarm.reasons import Reason

HEARD_FOR_S = 600.0
MAX_PEERS = 1_024


class Versions:
    """Thread-safe record of peers heard recently, and of those with another major version."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """No peers heard yet."""
        self._clock = clock
        self._lock = threading.Lock()
        self._heard = LruDict[str, tuple[float, str]](MAX_PEERS)
        """By peer: when it was last heard, and the version problem; empty if its record could be read."""

    def understood(self, peer_id: str) -> None:
        """A record of this peer could be read."""
        self._note(peer_id, "")

    def refused(self, peer_id: str, refusal: Refusal) -> None:
        """A record of this peer was refused, for any reason."""
        if refusal.reason == Reason.SCHEMA_VERSION:
            self._note(peer_id, refusal.detail)

    def describe(self) -> str:
        """One line if most peers heard in the last ten minutes have another version; else empty."""
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
