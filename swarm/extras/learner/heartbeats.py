"""Heartbeats: workers report to their learner and receive orders.

The transport names the asker, and the learner is addressed by its peer id.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from swarm.errors import TransportError
from swarm.net.services.requests import HEARTBEAT_PROTOCOL
from swarm.protocols import RequestTransport
from swarm.types import Heartbeat, Orders

TIMEOUT_S = 5.0
LONGEST_BACKOFF_S = 15.0
MAX_DOUBLINGS = 16
"""Beyond this the pause is `LONGEST_BACKOFF_S` anyway; after some hours, the power would not fit into a float."""
GONE_AFTER = 3
"""The learner counts as away after this many unanswered heartbeats in a row."""


def serve_heartbeats(transport: RequestTransport, beat: Callable[[str, Heartbeat], Orders]) -> None:
    """Answer workers with the result of `beat`, which must not block."""

    def answer(peer_id: str, request: bytes) -> bytes:
        return msgspec.msgpack.encode(beat(peer_id, msgspec.msgpack.decode(request, type=Heartbeat)))

    transport.serve(HEARTBEAT_PROTOCOL, answer)


class Heartbeats:
    """A thread that reports to the learner regularly, and backs off while it does not answer."""

    def __init__(
        self, transport: RequestTransport, learner: str, report: Callable[[], Heartbeat], every_s: float = 1.0
    ) -> None:
        """Start the thread; it calls `report`."""
        self._transport = transport
        self._learner = learner
        self._report = report
        self._every_s = every_s
        self._orders: Orders | None = None
        self._failures = 0
        self._closed = False
        self._news = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)
        self._thread.start()

    @property
    def orders(self) -> Orders | None:
        """The learner's last orders; None before the first and while it is away."""
        return self._orders

    @property
    def away(self) -> bool:
        """Whether the learner has not answered for several heartbeats."""
        return self._failures >= GONE_AFTER

    def soon(self) -> None:
        """Report at once."""
        self._news.set()

    def close(self) -> None:
        """Stop reporting."""
        self._closed = True
        self._news.set()
        self._thread.join(TIMEOUT_S + 1)

    def _run(self) -> None:
        while not self._closed:
            doublings = min(MAX_DOUBLINGS, max(0, self._failures - 1))
            self._news.wait(min(LONGEST_BACKOFF_S, self._every_s * 2**doublings))
            self._news.clear()
            if not self._closed:
                self._beat()

    def _beat(self) -> None:
        try:
            request = msgspec.msgpack.encode(self._report())
            answer = self._transport.request(self._learner, HEARTBEAT_PROTOCOL, request, TIMEOUT_S)
            self._orders = msgspec.msgpack.decode(answer, type=Orders)
            self._failures = 0
        except (TransportError, ValueError, RecursionError):
            # msgspec and UTF-8 decoding raise ValueError for an invalid answer.
            self._failures += 1
            if self.away:
                self._orders = None
