"""Incoming streams: which are served, refused as busy, or evicted, and how they are answered.

    a stream ──▶ rate of its peer and address ──▶ a slot ──▶ served
                        │ too high                  │ none free, none to evict
                        └───────────▶ "busy" ◀──────┘     (as many slots; beyond that reset without an answer)

Protocols that keep peers in the run have their own slots, which no other request can take; so have requests for records
by peers whose groups were useful here, and feeds, which last. When all slots are taken, a stream is evicted if its peer
keeps this node waiting, or if its peer or address holds far more slots than the newcomer; of feeds also one of a peer
that was of no use, for one that was. Addresses count before peers because identities are free. Pure but for the clock.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol

from swarm.net.addresses.dial import host_of
from swarm.net.bandwidth import MIN_RATE_BYTES_PER_S, RatePerName
from swarm.net.records.envelope import (
    LOOK_AGAIN_S,
    NOT_YET_S,
    REFUSAL_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    STALL_TIMEOUT_S,
    encode_answer,
    encode_error,
    read_request,
)
from swarm.net.records.feed import FEED_PROTOCOL, HELLO_PROTOCOL
from swarm.net.records.large import LARGE_PROTOCOL
from swarm.net.runtime import AsyncRuntime, until
from swarm.net.services.requests import (
    ANNOUNCE_PROTOCOL,
    ASK_PROTOCOL,
    HEARTBEAT_PROTOCOL,
    MANIFEST_PROTOCOL,
    PEERS_PROTOCOL,
)
from swarm.protocols import StreamHandler, Wakeup
from swarm.reasons import Reason

logger = logging.getLogger(__name__)

VITAL = frozenset(
    {MANIFEST_PROTOCOL, HELLO_PROTOCOL, PEERS_PROTOCOL, HEARTBEAT_PROTOCOL, ASK_PROTOCOL, ANNOUNCE_PROTOCOL}
)
"""Protocols with short requests and answers that a peer needs to enter a run and stay in it."""
MAX_STREAMS, MAX_VITAL_STREAMS, MAX_PROVEN_STREAMS = 64, 32, 32
"""Served at once: of other protocols, of `VITAL` ones, and of requests for records by proven peers. Each holds a
request or a few chunks."""
MAX_FEEDS = 32
"""Followers at once, four times as many as a node follows; a peer has one slot."""
MAX_STREAMS_PER_PEER = 16
"""Limit in each of the other groups."""
FAIR_LEAD = 4
"""A peer or address that holds more slots than a newcomer by over this number loses one to it."""
PATIENCE_S = 1.0
"""How long a peer may keep this node waiting while others want its slot, in addition to the transfer time."""
REQUESTS_PER_S, REQUESTS_AT_ONCE = 50.0, 500.0
"""Per peer. Honest peers send a few: heartbeats, repairs, one per part of a snapshot or large record."""
ADDRESS_FACTOR = 10.0
"""The rate of all peers behind one address, as a multiple of one peer's."""
BLAME_EVERY_S = 1.0


class Stream:
    """A stream that a peer has opened."""

    def __init__(self, remote: str, host: str, hang_up: Callable[[], None], clock: Callable[[], float]) -> None:
        """`hang_up` resets it."""
        self.remote = remote
        self.host = host
        self.hang_up = hang_up
        self.served = False
        """If false, the answer says that this node is busy."""
        self._clock = clock
        self.late_at = clock() + PATIENCE_S
        """When the peer exceeds its patience; infinite while this node works."""

    def peer_turn(self, num_bytes: int = 0) -> None:
        """The peer's turn to send or receive bytes."""
        begins = self._clock() + PATIENCE_S if self.late_at == math.inf else self.late_at
        self.late_at = begins + num_bytes / MIN_RATE_BYTES_PER_S

    def own_turn(self) -> None:
        """This node's turn."""
        self.late_at = math.inf


class StreamAdmission:
    """The open streams, and the request rates of peers and addresses."""

    def __init__(
        self,
        blame: Callable[[str, Reason], None] = lambda peer, reason: None,
        is_proven: Callable[[str], bool] = lambda peer: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`blame(peer, reason)` is called for peers that ask too often, or leave all their streams idle and open more;
        `is_proven(peer)`: it was useful here. Feeds of such peers have precedence.
        """
        self._blame = blame
        self._is_proven = is_proven
        self._clock = clock
        self._feeds: list[Stream] = []
        self._vital: list[Stream] = []
        self._proven: list[Stream] = []
        self._others: list[Stream] = []
        self._refused: list[Stream] = []
        self._peers = RatePerName(REQUESTS_PER_S, REQUESTS_AT_ONCE)
        self._hosts = RatePerName(ADDRESS_FACTOR * REQUESTS_PER_S, ADDRESS_FACTOR * REQUESTS_AT_ONCE)
        self._blames = RatePerName(1 / BLAME_EVERY_S, 1.0)

    def admit(self, remote: str, address: str, protocol: str, hang_up: Callable[[], None]) -> Stream | None:
        """Admit a stream from `address`; None if it must be reset without an answer."""
        stream = Stream(remote, host_of(address), hang_up, self._clock)
        slots, most = self._slots(remote, protocol)
        if self._asks_too_often(stream) or not self._has_slot(stream, slots, most):
            if len(self._refused) >= MAX_STREAMS:
                return None
            self._refused.append(stream)
            return stream
        stream.served = True
        slots.append(stream)
        return stream

    def release(self, stream: Stream) -> None:
        """The stream has ended."""
        for slots in (self._vital, self._proven, self._feeds, self._others, self._refused):
            if stream in slots:
                slots.remove(stream)

    def _slots(self, remote: str, protocol: str) -> tuple[list[Stream], int]:
        if protocol in VITAL:
            return self._vital, MAX_VITAL_STREAMS
        if protocol == FEED_PROTOCOL:
            return self._feeds, MAX_FEEDS
        if protocol == LARGE_PROTOCOL and self._is_proven(remote):
            return self._proven, MAX_PROVEN_STREAMS
        return self._others, MAX_STREAMS

    def _asks_too_often(self, stream: Stream) -> bool:
        now = self._clock()
        if not self._peers.take(stream.remote, now):
            self._floods(stream.remote, now)
            return True
        # Useful peers do not pay for others at their address.
        return not self._is_proven(stream.remote) and not self._hosts.take(stream.host, now)

    def _floods(self, remote: str, now: float) -> None:
        if self._blames.take(remote, now):
            self._blame(remote, Reason.FLOOD)

    def _has_slot(self, stream: Stream, slots: list[Stream], most: int) -> bool:
        peers = Counter(each.remote for each in slots)
        if slots is self._feeds and stream.remote in peers:
            # Of a connection that has ended, or it wants to begin again.
            self._hang_up_on(next(each for each in slots if each.remote == stream.remote), slots)
        if peers[stream.remote] >= MAX_STREAMS_PER_PEER:
            now = self._clock()
            if all(each.late_at < now for each in slots if each.remote == stream.remote):
                self._floods(stream.remote, now)
            return False
        if len(slots) < most:
            return True
        useless = [each for each in slots if not self._is_proven(each.remote)]
        if slots is self._feeds and useless and self._is_proven(stream.remote):
            self._hang_up_on(useless[0], slots)
            return True
        hosts = Counter(each.host for each in slots)
        greedy = max(slots, key=lambda each: (hosts[each.host], peers[each.remote], -each.late_at))
        late = min(slots, key=lambda each: each.late_at)
        if (
            hosts[greedy.host] > hosts[stream.host] + FAIR_LEAD
            or peers[greedy.remote] > peers[stream.remote] + FAIR_LEAD
        ):
            self._hang_up_on(greedy, slots)
        elif late.late_at < self._clock():
            self._hang_up_on(late, slots)
        else:
            return False
        return True

    def _hang_up_on(self, stream: Stream, slots: list[Stream]) -> None:
        slots.remove(stream)
        stream.hang_up()


class Gatekeeper(Protocol):
    """A node's policy for incoming streams."""

    admission: StreamAdmission
    """Decides which streams are served."""

    def admits(self, peer_id: str) -> bool:
        """Whether a peer's requests are answered at all."""

    def pace(self, num_bytes: int) -> float:
        """Seconds to wait before this many bytes of an answer are sent."""


class Unlimited:
    """A `Gatekeeper` that admits every peer at any rate."""

    def __init__(self) -> None:
        self.admission = StreamAdmission()

    def admits(self, peer_id: str) -> bool:
        """See `Gatekeeper`."""
        return True

    def pace(self, num_bytes: int) -> float:
        """See `Gatekeeper`."""
        return 0.0


class Channel(Protocol):
    """An incoming stream of a network library."""

    async def read(self, count: int) -> bytes:
        """Exactly so many bytes."""

    async def send(self, frame: bytes) -> None:
        """Write a frame, and wait until there is room for more."""

    def has_ended(self) -> bool:
        """Whether the asker is known to have closed the stream."""


async def answer_stream(
    stream: Stream,
    channel: Channel,
    protocol: str,
    handler: StreamHandler,
    pace: Callable[[int], float],
    runtime: AsyncRuntime,
) -> None:
    """Read the request of an admitted stream and send the answer, or refuse it as busy.

    Raises `TimeoutError`, and the errors of the library.
    """

    async def read(count: int) -> bytes:
        stream.peer_turn(count)
        return await channel.read(count)

    async def send(frame: bytes) -> None:
        async with runtime.timeout(STALL_TIMEOUT_S):
            await channel.send(frame)

    # Read the request even to refuse it: a close with unread bytes would lose the refusal.
    async with runtime.timeout(REQUEST_TIMEOUT_S if stream.served else REFUSAL_TIMEOUT_S):
        request = await read_request(read)
    stream.own_turn()
    if not stream.served:
        await send(encode_error("busy, ask later"))
        return
    for frame in _frames(handler, stream.remote, request, protocol):
        if isinstance(frame, bytes) and frame:
            await runtime.sleep(pace(len(frame)))
            stream.peer_turn(len(frame))
            await send(frame)
            stream.own_turn()
        elif channel.has_ended():
            return
        elif isinstance(frame, bytes):
            await runtime.sleep(NOT_YET_S)
        else:
            await until(frame, runtime, LOOK_AGAIN_S)


def _frames(handler: StreamHandler, remote: str, request: bytes, protocol: str) -> Iterator[bytes | Wakeup]:
    """The frames of an answer; an error of the handler is reported to its peer only."""
    try:
        yield from encode_answer(handler(remote, request))
    except Exception as error:
        logger.debug("the handler for %s failed", protocol, exc_info=True)
        yield encode_error(f"the handler failed: {type(error).__name__}")
