"""Records too large for gossip: announced with the digest of every chunk, then fetched from whoever holds them."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from contextlib import aclosing
from typing import Protocol

import msgspec
from msgspec import Struct

from swarm.errors import PeerUnreachable
from swarm.net.records.framing import MAX_CHUNK_BYTES
from swarm.net.records.identity import Identity
from swarm.net.records.shelf import Shelf, record_id
from swarm.net.records.wire import Announcement, seal_announcement
from swarm.types import Count

LARGE_PROTOCOL = "/swarm/large/1"
INLINE_BYTES = 1_000_000
"""Gossip carries records up to here; its own limit is 1 MiB, for the message with its framing."""
MAX_WAITING = 64
MAX_WAITING_PER_PEER = 4
MAX_PER_PAYER = 16
"""For all strangers together that one connection brings."""
MAX_PARTIAL_BYTES = 64 * 2**20
"""Held by all unfinished downloads that wait for another try."""


class Fetch(Protocol):
    """How a transport opens a stream: the chunks of a peer's answer. Raises `PeerUnreachable`."""

    def __call__(self, peer_id: str, protocol: str, payload: bytes, max_bytes: int) -> AsyncGenerator[bytes, None]:
        """Chunks of a peer's answer as they arrive."""
        ...


class LargeRequest(Struct, frozen=True, array_like=True):
    """Asks for a record's bytes from an offset on."""

    record_id: bytes
    offset: Count


def announce(identity: Identity, run_id: str, record: bytes) -> bytes:
    """The sealed announcement of a record."""
    chunks = tuple(record_id(piece) for piece in _pieces(record, 0))
    return seal_announcement(identity, Announcement(run_id, identity.peer_id, record_id(record), len(record), chunks))


def answer_large(shelf: Shelf, request: bytes) -> Iterator[bytes]:
    """The rest of a record that is held. Raises `LookupError` or `msgspec.MsgspecError`."""
    wanted = msgspec.msgpack.decode(request, type=LargeRequest)
    record = shelf.get(wanted.record_id)
    if record is None or wanted.offset > len(record):
        raise LookupError("not held here")
    return _pieces(record, wanted.offset)


class Download:
    """A record being put together, every chunk checked on arrival, by one holder after another."""

    def __init__(self, announcement: Announcement, payer: str = "") -> None:
        """Nothing of it yet; it goes on the account of `payer`."""
        self.announcement = announcement
        self.payer = payer
        self._content = bytearray()
        self._verified = 0

    @property
    def done(self) -> bool:
        """Whether every chunk is here."""
        return len(self._content) == self.announcement.num_bytes == self._verified

    @property
    def num_held(self) -> int:
        """Bytes of it in memory."""
        return len(self._content)

    def clear(self) -> None:
        """Let go of what is here."""
        self._content.clear()
        self._verified = 0

    def feed(self, piece: bytes) -> None:
        """Take the next bytes in. Raises `PeerUnreachable` when they are not the announced ones."""
        announced = self.announcement
        self._content += piece
        if len(self._content) > announced.num_bytes:
            raise PeerUnreachable(f"it sent more than the {announced.num_bytes} bytes that were announced")
        while self._verified < len(self._content):
            end = min(self._verified + MAX_CHUNK_BYTES, announced.num_bytes)
            if end > len(self._content):
                return
            expected = announced.chunk_ids[self._verified // MAX_CHUNK_BYTES]
            if record_id(bytes(self._content[self._verified : end])) != expected:
                raise PeerUnreachable(f"it sent something else at byte {self._verified} than was announced")
            self._verified = end

    async def fetch_from(self, fetch: Fetch, peer_id: str) -> None:
        """Get what is missing from one holder; what was verified stays if it fails. Raises `PeerUnreachable`."""
        del self._content[self._verified :]
        wanted = msgspec.msgpack.encode(LargeRequest(self.announcement.record_id, self._verified))
        room = self.announcement.num_bytes - self._verified
        async with aclosing(fetch(peer_id, LARGE_PROTOCOL, wanted, room)) as chunks:
            async for chunk in chunks:
                self.feed(chunk)
        if not self.done:
            raise PeerUnreachable(f"it sent only {self._verified} of {self.announcement.num_bytes} bytes")

    def record(self) -> bytes:
        """The whole record. Raises `PeerUnreachable` when it is not what its announcer said it is."""
        record = bytes(self._content)
        if record_id(record) != self.announcement.record_id:
            raise PeerUnreachable("the announced chunks do not make up the announced record")
        return record


class Waiting:
    """Downloads that wait for their turn, bounded in all and for each announcer and payer; payers take turns."""

    def __init__(self) -> None:
        """None yet."""
        self._downloads: dict[str, deque[tuple[float, Download]]] = {}
        """By payer, in the order of their turns."""
        self._announced_by: Counter[str] = Counter()
        self._paid_by: Counter[str] = Counter()

    def add(self, announcement: Announcement, give_up_at: float, payer: str) -> bool:
        """Queue a download on the account of `payer`; False when there are too many.

        Where all places are taken, the newest of the payer who has most makes room for one who has less.
        """
        if self._announced_by[announcement.peer_id] >= MAX_WAITING_PER_PEER or self._paid_by[payer] >= MAX_PER_PAYER:
            return False
        if len(self) >= MAX_WAITING and not self._displace(payer):
            return False
        self._announced_by[announcement.peer_id] += 1
        self._paid_by[payer] += 1
        self._downloads.setdefault(payer, deque()).append((give_up_at, Download(announcement, payer)))
        return True

    def take(self) -> tuple[float, Download] | None:
        """That of the next payer which has waited longest, still counted until `put_back` or `forget`."""
        if not self._downloads:
            return None
        payer = next(iter(self._downloads))
        waiting = self._downloads.pop(payer)
        taken = waiting.popleft()
        if waiting:
            self._downloads[payer] = waiting
        return taken

    def put_back(self, give_up_at: float, download: Download) -> None:
        """Let another try come later; it starts anew when those that wait hold too much already."""
        held = sum(other.num_held for waiting in self._downloads.values() for _, other in waiting)
        if download.num_held + held > MAX_PARTIAL_BYTES:
            download.clear()
        self._downloads.setdefault(download.payer, deque()).append((give_up_at, download))

    def forget(self, download: Download) -> None:
        """Done or given up."""
        for counts, key in ((self._announced_by, download.announcement.peer_id), (self._paid_by, download.payer)):
            counts[key] -= 1
            if not counts[key]:
                del counts[key]

    def __len__(self) -> int:
        """Number of downloads that wait."""
        return sum(map(len, self._downloads.values()))

    def _displace(self, payer: str) -> bool:
        most = max(self._downloads, key=lambda other: len(self._downloads[other]))
        if len(self._downloads[most]) <= self._paid_by[payer] + 1:
            return False
        _, dropped = self._downloads[most].pop()
        self.forget(dropped)
        return True


def holders(
    announcement: Announcement, members: Collection[str], shuffle: Callable[[list[str]], None] = random.shuffle
) -> list[str]:
    """Whom to ask in turn: the announcer if it is among the members, then the others in random order."""
    others = [peer_id for peer_id in members if peer_id != announcement.peer_id]
    shuffle(others)
    return [announcement.peer_id, *others] if announcement.peer_id in members else others


def _pieces(record: bytes, offset: int) -> Iterator[bytes]:
    for start in range(offset, len(record), MAX_CHUNK_BYTES):
        yield record[start : start + MAX_CHUNK_BYTES]
