"""Repair of what gossip has not brought: a node asks a member what it holds, and fetches missing records by id.

    have   records at most this old?  ->  ids, sizes, ages
    give   these ids                  ->  id | length | record, for each one still held

Every answer is bounded in ids, records and bytes; the caller bounds the time. Independent of asyncio and trio.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from swarm.errors import PeerUnreachable
from swarm.net.records.feed import Feed, Named
from swarm.net.records.large import INLINE_BYTES, Fetch
from swarm.net.records.stores import RECORD_ID_BYTES, Held, RecordStore, record_id
from swarm.types import complete

HAVE_PROTOCOL = "/swarm/have/1"
GIVE_PROTOCOL = "/swarm/give/1"
MAX_LISTED = 4_096
MAX_HAVE_BYTES = 64 * MAX_LISTED
MAX_GIVEN = 256
MAX_GIVEN_BYTES = 8 * 2**20
MAX_BATCHES = 16
"""Requests of `MAX_GIVEN` records or `MAX_GIVEN_BYTES` each: the limit per peer and repair round."""
ROUND_TIMEOUT_S = 30.0
GOSSIP_GRACE_S = 2.0
"""Younger records may still arrive by gossip."""
BACKFILL_ROUNDS = 3
"""Number of answered rounds that cover the whole backfill time; later rounds cover recent records only."""
WINDOW_ROUNDS = 6
"""Each recent record is covered by this many rounds, since the first peers asked may have missed it too."""
LENGTH_BYTES = 4


class HaveRequest(Struct, frozen=True, array_like=True):
    """Asks which records a peer holds."""

    max_age_s: Annotated[float, Meta(ge=0, le=1e9)]


class GiveRequest(Struct, frozen=True, array_like=True):
    """Requests records by id."""

    record_ids: Annotated[tuple[bytes, ...], Meta(max_length=MAX_GIVEN)]


def answer_have(store: RecordStore, request: bytes) -> bytes:
    """Held records, latest first. Raises `msgspec.MsgspecError`."""
    asked = msgspec.msgpack.decode(request, type=HaveRequest)
    return msgspec.msgpack.encode(store.listing(asked.max_age_s, GOSSIP_GRACE_S, MAX_LISTED))


def answer_give(store: RecordStore, feed: Feed, request: bytes) -> Iterator[bytes]:
    """The requested records that are held, up to the limits of one answer. Raises `msgspec.MsgspecError`."""
    asked = msgspec.msgpack.decode(request, type=GiveRequest)
    return _read_held(store, feed, asked.record_ids)


def _read_held(store: RecordStore, feed: Feed, names: Sequence[bytes]) -> Iterator[bytes]:
    room = MAX_GIVEN_BYTES
    for name in names:
        record = store.get(name) or feed.get(name)
        if record is None or len(record) > INLINE_BYTES:
            continue
        room -= len(record)
        if room < 0:
            return
        yield name + len(record).to_bytes(LENGTH_BYTES, "big") + record


class RecordReader:
    """Splits an answer to `give` into records, across chunk boundaries; accepts each requested record once."""

    def __init__(self, wanted: Sequence[bytes]) -> None:
        """Expect records with these ids."""
        self._wanted = set(wanted)
        self._pending = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The records completed by this chunk. Raises `PeerUnreachable` for anything that was not requested."""
        header_bytes = RECORD_ID_BYTES + LENGTH_BYTES
        self._pending += chunk
        while len(self._pending) >= header_bytes:
            name = bytes(self._pending[:RECORD_ID_BYTES])
            length = int.from_bytes(self._pending[RECORD_ID_BYTES:header_bytes], "big")
            if name not in self._wanted or length > INLINE_BYTES:
                raise PeerUnreachable("it sent a record that was not requested")
            if len(self._pending) < header_bytes + length:
                return
            record = bytes(self._pending[header_bytes : header_bytes + length])
            if record_id(record) != name:
                raise PeerUnreachable("it sent a record that does not match its id")
            del self._pending[: header_bytes + length]
            self._wanted.remove(name)
            yield record

    def close(self) -> None:
        """End of the answer. Raises `PeerUnreachable` if a record is incomplete."""
        if self._pending:
            raise PeerUnreachable("its answer ends within a record")


async def ask_records(fetch: Fetch, peer_id: str, listed: Sequence[Held | Named]) -> AsyncGenerator[bytes, None]:
    """The listed records that a peer still has. Raises `PeerUnreachable`."""
    names = tuple(each.record_id for each in listed)
    reader = RecordReader(names)
    request = msgspec.msgpack.encode(GiveRequest(names))
    # Bound the answer by the sizes that the peer listed: it cannot list small records and send large ones.
    room = sum(each.num_bytes + RECORD_ID_BYTES + LENGTH_BYTES for each in listed)
    async with aclosing(fetch(peer_id, GIVE_PROTOCOL, request, room)) as chunks:
        async for chunk in chunks:
            for record in reader.feed(chunk):
                yield record
    reader.close()


class Repair:
    """The repair state of one node. The caller chooses the peer and bounds the time."""

    def __init__(
        self,
        store: RecordStore,
        fetch: Fetch,
        deliver: Callable[[str, bytes, float], None],
        *,
        every_s: float,
        backfill_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`deliver(helper, record, age_s)` accepts a missing record; the caller runs a round every `every_s`."""
        self._store = store
        self._fetch = fetch
        self._deliver = deliver
        self._every_s = every_s
        self._backfill_s = backfill_s
        self._clock = clock
        self._num_rounds = 0
        self._answered_at = clock()

    def window_s(self) -> float:
        """Maximum age in seconds of the records that the next round covers."""
        if self._num_rounds < BACKFILL_ROUNDS:
            return self._backfill_s
        since_answer_s = self._clock() - self._answered_at
        return min(self._backfill_s, since_answer_s + WINDOW_ROUNDS * self._every_s + GOSSIP_GRACE_S)

    async def round(self, peer_id: str) -> None:
        """Ask one peer what it holds and fetch the missing records. Raises `PeerUnreachable`."""
        began = self._clock()
        # Oldest first: if the inbox overflows, it drops the least important records.
        missing = [held for held in reversed(await self._ask(peer_id)) if self._is_missing(held)]
        for _ in range(MAX_BATCHES):
            batch, missing = _first_batch(missing)
            if not batch:
                break
            await self._get(peer_id, batch)
        self._num_rounds += 1
        self._answered_at = began

    def _is_missing(self, held: Held) -> bool:
        usable = held.num_bytes <= INLINE_BYTES and held.age_s <= self._backfill_s and not held.offered
        return usable and not self._store.has_seen(held.record_id)

    async def _ask(self, peer_id: str) -> list[Held]:
        request = msgspec.msgpack.encode(HaveRequest(self.window_s()))
        answer = bytearray()
        async with aclosing(self._fetch(peer_id, HAVE_PROTOCOL, request, MAX_HAVE_BYTES)) as chunks:
            async for chunk in chunks:
                answer += chunk
        try:
            return msgspec.msgpack.decode(answer, type=list[Held])[:MAX_LISTED]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise PeerUnreachable(f"its list of records cannot be read: {error}") from error

    async def _get(self, peer_id: str, batch: Sequence[Held]) -> None:
        ages = {held.record_id: held.age_s for held in batch}
        async with aclosing(ask_records(self._fetch, peer_id, batch)) as records:
            async for record in records:
                self._deliver(peer_id, record, ages[record_id(record)])


def _first_batch(missing: list[Held]) -> tuple[list[Held], list[Held]]:
    count, room = 0, MAX_GIVEN_BYTES
    for held in missing[:MAX_GIVEN]:
        room -= held.num_bytes
        if room < 0:
            break
        count += 1
    return missing[:count], missing[count:]


complete(globals())
