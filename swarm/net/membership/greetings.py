"""Who of the connected peers takes part in the run: each connection is greeted once, by an end that knows the run."""

from __future__ import annotations

import time
from collections.abc import Callable

from swarm.lru import LruDict
from swarm.net.addresses.dial import Backoff
from swarm.net.membership.current_run import CurrentRun
from swarm.net.records.feed import Hello, decode_hello, encode

FORGOTTEN_AFTER_S = 30.0
"""A peer that was not connected for this time is greeted again. Longer than it takes to notice its connection."""
MAX_GREETED = 4_096
RETRY_S = 5.0


class _Greeted:
    """What one peer has said, and whether it has been answered as a member."""

    def __init__(self, now: float) -> None:
        self.takes_part = False
        self.knows_us = False
        self.seen_at = now


class Greetings:
    """What peers said of themselves. Written on the network thread, readable on any."""

    def __init__(self, run: CurrentRun, takes_part: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """Nobody has been greeted. `takes_part`: whether this node itself follows others and can be followed."""
        self._run = run
        self._takes_part = takes_part
        self._clock = clock
        self._greeted = LruDict[str, _Greeted](MAX_GREETED)
        self._failed = Backoff(RETRY_S)
        self.on_change: Callable[[], None] = lambda: None
        """Called when a peer turns out to take part in the run, or not to."""

    def members(self) -> frozenset[str]:
        """Peers that said that they take part in this run."""
        return frozenset(peer_id for peer_id, greeted in tuple(self._greeted.items()) if greeted.takes_part)

    def own(self) -> bytes:
        """This node's greeting."""
        run_id = self._run.manifest.run_id if self._run.manifest else ""
        return encode(Hello(run_id, self._takes_part))

    def answer(self, remote: str, request: bytes) -> bytes:
        """Take in a peer's greeting and return this node's. Raises as `decode_hello`."""
        self.heard(remote, request, knows_us=self._run.manifest is not None)
        return self.own()

    def heard(self, peer_id: str, content: bytes, *, knows_us: bool) -> None:
        """Take in what a peer says of itself; `knows_us`: it has this node's greeting. Raises as `decode_hello`."""
        hello = decode_hello(content)
        # Before this node knows its own run it takes any: it greets the peer again when it does.
        own = self._run.manifest.run_id if self._run.manifest else hello.run_id
        takes_part = hello.takes_part and hello.run_id == own != ""
        greeted = self._greeted.setdefault(peer_id, _Greeted(self._clock()))
        greeted.knows_us = greeted.knows_us or knows_us
        greeted.seen_at = self._clock()
        self._failed.succeeded(peer_id)
        if greeted.takes_part != takes_part:
            greeted.takes_part = takes_part
            self.on_change()

    def failed(self, peer_id: str) -> None:
        """A peer did not answer; it is asked again later, ever less often."""
        self._failed.failed(peer_id, self._clock())

    def due(self, connected: frozenset[str]) -> list[str]:
        """Connected peers that do not have this node's greeting."""
        now = self._clock()
        for peer_id in connected & self._greeted.keys():
            self._greeted[peer_id].seen_at = now
        for peer_id, greeted in list(self._greeted.items()):
            if now - greeted.seen_at > FORGOTTEN_AFTER_S:
                del self._greeted[peer_id]
        known = {peer_id for peer_id, greeted in self._greeted.items() if greeted.knows_us}
        return [peer_id for peer_id in connected - known if self._failed.wait_s(peer_id, now) <= 0]
