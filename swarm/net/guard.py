"""Errors and misbehaviour of peers: counters, complaints, and the guard that catches what peers provoke."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from swarm.errors import PeerUnreachable, TransportError
from swarm.net.addresses.dial import Backoff
from swarm.net.runtime import AsyncRuntime
from swarm.reasons import Reason

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 30.0

ORDINARY = (LookupError, OSError)
"""Errors that an honest request may cause: something is not held here, or cannot be read."""
MAX_PEERS = 1_024
"""Peers with complaints that have not been taken yet."""
MAX_OF_ONE = 256
"""Complaints about one peer that have not been taken yet: far more than it takes to quarantine it."""


class Guard:
    """Protects the network thread from errors that peers provoke."""

    def __init__(self, counters: Counters, complain: Callable[[str, Reason], None]) -> None:
        """`complain(peer, reason)` is called for the sender of input that caused an error."""
        self._counters = counters
        self._complain = complain

    def request_failed(self, remote: str, error: Exception) -> None:
        """Count a handler's error; the caller reports it to the peer."""
        self._counters.add("handler_errors")
        if not isinstance(error, ORDINARY):
            self._complain(remote, Reason.BAD_REQUEST)

    def guarded(self, receive: Callable[[str, bytes], None]) -> Callable[[str, bytes], None]:
        """Wrap `receive(helper, record)` so that it raises `PeerUnreachable` only."""

        def receive_guarded(helper: str, record: bytes) -> None:
            try:
                receive(helper, record)
            except PeerUnreachable:
                raise
            except Exception:
                self._complain(helper, Reason.BAD_GOSSIP)
                logger.debug("dropped a record that %s handed over, after an error", helper, exc_info=True)

        return receive_guarded

    async def supervise(self, loop: Callable[[], Awaitable[None]], runtime: AsyncRuntime) -> None:
        """Run a loop, and restart it after every error. Raises `TransportError` if the network itself has failed."""
        pauses = Backoff(FIRST_PAUSE_S, MAX_PAUSE_S)
        while True:
            began = time.monotonic()
            try:
                return await loop()
            except Exception as error:
                if isinstance(error, TransportError) and not isinstance(error, PeerUnreachable):
                    raise
                self._counters.add("loop_errors")
                logger.exception("a network loop is restarted after an error")
            now = time.monotonic()
            if now - began > MAX_PAUSE_S:
                pauses.succeeded("")
            pauses.failed("", now)
            await runtime.sleep(pauses.wait_s("", now))


class Counters:
    """A thread-safe counter by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        """Add `count` to `name`."""
        with self._lock:
            self._counts[name] += count

    def snapshot(self) -> dict[str, int]:
        """A copy of all counts."""
        with self._lock:
            return dict(self._counts)


class Complaints:
    """Complaints, counted by reason and kept for the peers' accounts, fair between peers. Any thread may add."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Reason]] = {}
        """Complaints by peer."""

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
