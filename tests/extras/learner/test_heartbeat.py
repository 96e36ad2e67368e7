"""Heartbeats between a learner and a worker, on the memory transport."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import msgspec
import pytest

from swarm.extras.learner import heartbeats as heartbeat_module
from swarm.extras.learner.heartbeats import Heartbeats, serve_heartbeats
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.types import Heartbeat, Orders

DEADLINE_S = 300.0


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Pair:
    """A learner and a worker in one room."""

    def __init__(self) -> None:
        self.hub = MemoryHub()
        self.identity = Identity.generate()
        self.learner = self.enter(self.identity.peer_id)
        self.worker = self.enter("worker")

    def enter(self, peer_id: str) -> MemoryTransport:
        transport = MemoryTransport(self.hub, peer_id)
        transport.start()
        return transport


def test_orders_follow_heartbeats_and_end_when_the_learner_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    beats: list[tuple[str, Heartbeat]] = []

    def beat(peer_id: str, heartbeat: Heartbeat) -> Orders:
        beats.append((peer_id, heartbeat))
        return Orders(version=7, max_staleness=2, active=len(beats) > 1)

    serve_heartbeats(pair.learner, beat)
    own = Heartbeat(1.0, 3, 40, 8.0, 0.35)
    heartbeats = Heartbeats(pair.worker, pair.identity.peer_id, lambda: own, every_s=0.01)
    try:
        until(lambda: heartbeats.orders and heartbeats.orders.active)
        assert heartbeats.orders == Orders(7, 2, True)
        assert beats[0] == ("worker", own)
        assert not heartbeats.away
        pair.learner.close()
        until(lambda: heartbeats.away)
        until(lambda: heartbeats.orders is None)
        again = pair.enter(pair.identity.peer_id)
        serve_heartbeats(again, beat)
        until(lambda: heartbeats.orders is not None)
        until(lambda: not heartbeats.away)
    finally:
        heartbeats.close()


def test_a_learner_may_be_away_for_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_module, "LONGEST_BACKOFF_S", 0.0)
    pair = Pair()
    pair.learner.close()
    heartbeats = Heartbeats(pair.worker, pair.identity.peer_id, lambda: Heartbeat(1.0, 3, 40, 8.0, 0.35), every_s=1.0)
    try:
        # At the longest pause, this is more than a day.
        until(lambda: heartbeats._failures > 6_000)
        serve_heartbeats(pair.enter(pair.identity.peer_id), lambda peer_id, beat: Orders(7, 2, True))
        until(lambda: heartbeats.orders is not None)
    finally:
        heartbeats.close()


@pytest.mark.parametrize(
    "heartbeat",
    [
        Heartbeat(math.nan, None, 0, 0.0, 0.0),
        Heartbeat(0.0, -1, 0, 0.0, 0.0),
        Heartbeat(0.0, None, -1, 0.0, 0.0),
        Heartbeat(0.0, None, 2**60, 0.0, 0.0),
        Heartbeat(0.0, None, 0, math.inf, 0.0),
        Heartbeat(0.0, None, 0, 1e300, 0.0),
        Heartbeat(0.0, None, 0, 0.0, math.nan),
        Heartbeat(0.0, None, 0, 0.0, -1.0),
    ],
)
def test_what_no_worker_can_say_is_refused_by_the_type(heartbeat: Heartbeat) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(heartbeat), type=Heartbeat)
