"""Gossip by feeds: followers of a node read, at their own pace, each record that the node newly stored.

    hello  this run, takes part?  ->  the same of the node asked                         (once for each connection)
    feed   this run               ->  parts, for ever: new records, and the ids of those that the follower can ask for

A node sends nothing that was not asked for. Small records are sent at once; larger ones of others by id, because every
follower hears of them from several nodes and fetches them (`give`) from one. Independent of asyncio and trio.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from swarm.errors import PeerUnreachable, Refusal
from swarm.fair_store import FairStore
from swarm.net.records.envelope import MAX_RUN_ID_CHARS
from swarm.net.records.large import INLINE_BYTES
from swarm.net.records.stores import RECORD_ID_BYTES, record_id
from swarm.protocols import Wakeup
from swarm.reasons import Reason
from swarm.types import complete

FOLLOWED_AT_ONCE = 8
"""Feeds that a node reads: these reach every node of a large swarm within a few steps."""
HELLO_PROTOCOL = "/swarm/hello/1"
FEED_PROTOCOL = "/swarm/feed/1"
MAX_HELLO_BYTES = 1_024
FEED_RECORDS, FEED_BYTES = 1_024, 16 * 2**20
"""Latest records that a feed can still give; a follower that falls behind these gets the others by repair."""
OWN_BYTES, OTHERS_BYTES = 16_384, 1_024
"""Largest records sent at once: a node's own, which no other peer can have given yet, and others'."""
MAX_ITEMS = 256
"""Records and ids in one part, each."""
PART_BYTES = 2**16
"""A part ends with the record that exceeds this; so it fits into one chunk."""
REPLAYED_S = 3.0
"""A new follower gets the records of this time again, which were on their way when it came."""
WAITS_S, READERS = 120.0, 3
"""How long an own record waits for further followers, until `READERS` have read it: a node with few followers, or with
some that forward nothing, is heard all the same. Within this time all members choose new peers to follow."""
SIGN_OF_LIFE_S = 5.0
"""Without news, an empty part is sent after this time."""


class Hello(Struct, frozen=True, array_like=True):
    """A node's greeting."""

    run_id: Annotated[str, Meta(max_length=MAX_RUN_ID_CHARS)]
    """Empty while it does not know the run."""
    takes_part: bool
    """Whether it follows others and can be followed; false for a visitor."""


class FeedRequest(Struct, frozen=True, array_like=True):
    """Asks for the feed of a run."""

    run_id: Annotated[str, Meta(max_length=MAX_RUN_ID_CHARS)]


class Named(Struct, frozen=True, array_like=True):
    """A record that `give` delivers."""

    record_id: Annotated[bytes, Meta(min_length=RECORD_ID_BYTES, max_length=RECORD_ID_BYTES)]
    num_bytes: Annotated[int, Meta(ge=0, le=INLINE_BYTES)]


class FeedPart(Struct, frozen=True, array_like=True):
    """News since the previous part."""

    records: Annotated[tuple[Annotated[bytes, Meta(max_length=OWN_BYTES)], ...], Meta(max_length=MAX_ITEMS)] = ()
    named: Annotated[tuple[Named, ...], Meta(max_length=MAX_ITEMS)] = ()


def encode(message: Hello | FeedRequest | FeedPart) -> bytes:
    """The bytes of a message."""
    return msgspec.msgpack.encode(message)


def decode_hello(content: bytes) -> Hello:
    """Raises `msgspec.MsgspecError`, or `Refusal` for a longer one."""
    if len(content) > MAX_HELLO_BYTES:
        raise Refusal(Reason.OVERSIZED, f"at most {MAX_HELLO_BYTES} bytes, got {len(content)}")
    return msgspec.msgpack.decode(content, type=Hello)


def decode_part(chunk: bytes) -> FeedPart:
    """A part of a feed, which is one chunk. Raises `PeerUnreachable`."""
    try:
        return msgspec.msgpack.decode(chunk, type=FeedPart)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerUnreachable(f"its feed cannot be read: {error}") from error


class Change:
    """A `Wakeup` that calls its watchers. For one thread."""

    def __init__(self) -> None:
        self._watching: list[Callable[[], None]] = []

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` each time it happens."""
        self._watching.append(wake)

    def unwatch(self, wake: Callable[[], None]) -> None:
        """Stop calling `wake`."""
        self._watching.remove(wake)

    def happened(self) -> None:
        """Wake all watchers."""
        for wake in self._watching:
            wake()


class _New(Struct):
    """A record in the feed."""

    record: bytes
    is_own: bool
    added_at: float
    known_to: set[str]
    """Peers that have it: its author, and those that handed it over or named it here."""
    readers: set[str]
    """The first followers that read it."""

    def waits(self, now: float) -> bool:
        """Whether a new follower is given it, however old it is."""
        return self.is_own and len(self.readers) < READERS and now - self.added_at < WAITS_S


class Feed:
    """A node's latest records in order of arrival, for its followers. For the network thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._new = FairStore[bytes, _New](FEED_RECORDS, FEED_BYTES)
        """New records by id."""
        self._end = 0
        """Number of records so far."""
        self._added = Change()

    def add(self, record: bytes, *known_to: str, is_own: bool = False) -> None:
        """Append a record, and wake the followers; `known_to`: peers that have it."""
        name = record_id(record)
        if name in self._new:
            return
        self._new.add(name, _New(record, is_own, self._clock(), set(known_to), set()), num_bytes=len(record))
        self._end += 1
        self._added.happened()

    def known_to(self, peer_id: str, name: bytes) -> None:
        """A peer has this record, so it need not be sent there."""
        if (new := self._new.get(name)) is not None:
            new.known_to.add(peer_id)

    def get(self, name: bytes) -> bytes | None:
        """A record that the feed still has."""
        new = self._new.get(name)
        return new.record if new is not None else None

    def follow(self, follower: str) -> Iterator[bytes | Wakeup]:
        """The parts of the feed for one follower, for ever."""
        position, said_at = self._end - len(self._new), self._clock()
        replayed_from = said_at - REPLAYED_S
        yield encode(FeedPart())  # so that it knows at once that it is served
        while True:
            position, part = self._part(position, follower, replayed_from)
            if not (part.records or part.named) and self._clock() - said_at < SIGN_OF_LIFE_S:
                yield self._added
                continue
            said_at = self._clock()
            yield encode(part)

    def _part(self, position: int, follower: str, replayed_from: float) -> tuple[int, FeedPart]:
        """News from a position on, up to the limits of one part, and the position after it."""
        now = self._clock()
        first = self._end - len(self._new)
        position = max(position, first)
        records: list[bytes] = []
        named: list[Named] = []
        num_bytes = 0
        for name in reversed(list(islice(reversed(self._new), self._end - position))):
            new = self._new[name]
            if max(len(records), len(named)) == MAX_ITEMS or num_bytes > PART_BYTES:
                break
            position += 1
            if follower in new.known_to or not (new.added_at > replayed_from or new.waits(now)):
                continue
            if len(new.readers) < READERS:
                new.readers.add(follower)
            if len(new.record) <= (OWN_BYTES if new.is_own else OTHERS_BYTES):
                records.append(new.record)
                num_bytes += len(new.record)
            else:
                named.append(Named(name, len(new.record)))
        return position, FeedPart(tuple(records), tuple(named))


complete(globals())
