"""Choice of the peer that sends the next chunks of a part, by what peers hold and how they have performed.

A new source is chosen in two cases: the current one has ended (`after`), or it is slow and another would be faster
(`better_than`). In both cases the new source holds more chunks than this node, so two waiting nodes never wait for each
other.
"""

from __future__ import annotations

import math
import random
import threading
from collections import Counter, deque
from collections.abc import Generator, Iterator
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from swarm.errors import Refusal, TransportError
from swarm.net.bandwidth import MIN_RATE_BYTES_PER_S, LinkLimit
from swarm.net.counters import Counters
from swarm.net.direct.client import DirectClient
from swarm.net.records.framing import MAX_CHUNK_BYTES
from swarm.net.snapshots.messages import (
    CHUNKS_PROTOCOL,
    ChunksRequest,
    StatusReply,
    StatusRequest,
    request_status,
)
from swarm.net.snapshots.plan import Place
from swarm.net.snapshots.store import PartName, Stored
from swarm.protocols import Transport
from swarm.reasons import Reason

MAX_ASKED = 8
FED_LITTLE = 1 / 8
MAX_POOR_TURNS = 3
"""How often in a row a source may claim to hold no more chunks than this node."""


@dataclass(frozen=True)
class Downloads:
    """State that all fetches of a node share."""

    transport: Transport
    stall_s: float
    direct: DirectClient | None
    """None with a rate limit, which the network library's streams reach."""
    bytes_per_s: float | None
    """Limit of this node's download rate; None: unlimited."""
    bucket: LinkLimit
    """For this limit."""
    askers: Executor
    counters: Counters
    complaints: deque[tuple[str, Reason]]
    """(peer id, reason) of complaints about peers."""
    closing: threading.Event
    """Set when the node stops."""

    def stream(
        self, peer_id: str, request: ChunksRequest, timeout_s: float, max_bytes: int
    ) -> Generator[bytes, None, None]:
        """The bytes of a peer's chunks, over a direct link where there is one. Raises `PeerUnreachable`."""
        asked = msgspec.msgpack.encode(request)
        pieces = self.direct.stream(peer_id, asked, timeout_s, max_bytes) if self.direct else None
        return pieces or self.transport.stream(peer_id, CHUNKS_PROTOCOL, asked, timeout_s, max_bytes)


class Pace(Struct, frozen=True):
    """Expected performance of a source."""

    bytes_per_s: float
    silence_s: float
    """Longest accepted silence: the time that a link at this rate needs for a few pieces."""
    lead: int
    """Chunks that another peer must be ahead before a change pays: as many as the link carries in `stall_s`."""

    @staticmethod
    def of(place: Place, limit: float | None, chunk_bytes: int, stall_s: float) -> Pace:
        """From the planned rate, or the minimum rate of any source; at most this node's `limit`."""
        rate = min(place.bytes_per_s or MIN_RATE_BYTES_PER_S, limit or math.inf)
        return Pace(
            bytes_per_s=rate,
            silence_s=max(stall_s, 4 * min(chunk_bytes, MAX_CHUNK_BYTES) / rate),
            lead=max(2, int(rate * stall_s / chunk_bytes)),
        )


class Source(Struct, frozen=True):
    """A candidate for the next chunk."""

    peer_id: str
    is_kept: bool
    """It was the source until now, and is not to blame for the end."""
    num_poor_turns: int
    """Failures in a row, each after too few chunks."""
    num_free: int
    """Free places according to the plan; at 0 it accepts one more, which slows down all that it feeds."""
    distance: int
    """Its index among the planned sources; other peers get that of the last one, the learner."""
    num_held: int
    """Chunks that it holds."""

    @property
    def rank(self) -> tuple[bool, int, bool, int, int, str]:
        """Sort key: the source with the lowest rank is the best; the peer id breaks ties."""
        is_full = self.num_free == 0
        return not self.is_kept, self.num_poor_turns, is_full, self.distance, -self.num_held, self.peer_id


class Sources:
    """The candidate sources of one part."""

    def __init__(self, downloads: Downloads, stored: Stored, name: PartName, place: Place) -> None:
        """Sources of part `name` of a version; `place` is this node's place in the plan."""
        part = stored.part(name)
        assert part is not None
        self._downloads = downloads
        self._part = part
        self._version = stored.manifest.version
        self._name: PartName = name
        self._place = place
        self.pace = Pace.of(place, downloads.bytes_per_s, part.chunks.chunk_bytes, downloads.stall_s)
        self.current: str | None = None
        """The current or last source."""
        self._corrupt: set[str] = set()
        """Peers that sent a wrong chunk; not asked again."""
        self._overdue: set[str] = set()
        """Peers that sent a part of a chunk, and did not send the rest in time."""
        self._poor_turns: Counter[str] = Counter()
        """By source: failures in a row, each after too few chunks."""
        self._num_from: Counter[str] = Counter()
        """Chunks received, by source."""

    @property
    def planned(self) -> str | None:
        """The planned source, unless it sent a wrong chunk."""
        source = self._place.sources[0]
        return source if source not in self._corrupt else None

    @property
    def failed(self) -> tuple[str, ...]:
        """The planned source, if nearly all chunks had to come from others, none came in several turns, or one came too
        slowly."""
        source = self._place.sources[0]
        num_chunks = self._num_from[source]
        gave_little = num_chunks < FED_LITTLE * self._num_from.total()
        gave_nothing = num_chunks == 0 and self._poor_turns[source] > MAX_POOR_TURNS
        return (source,) if gave_little or gave_nothing or source in self._overdue else ()

    def ended(self, source: str, num_chunks: int, too_little: bool) -> None:
        """Record the end of a source after `num_chunks`; `too_little`: fewer than expected in this time."""
        self._num_from[source] += num_chunks
        self._poor_turns[source] = self._poor_turns[source] + 1 if too_little else 0

    def sent_corrupt(self, source: str) -> None:
        """Record that a source sent a wrong chunk."""
        self._corrupt.add(source)

    def after(self, ended: str | None) -> str | None:
        """The best source to continue with; None if there is none.

        The source that has just ended is preferred if it still answers and is not to blame.
        """
        found = []
        for peer, status in self._answers():
            num_held = status.num_held(self._name)
            kept = peer == ended and not self._is_to_blame(peer, num_held)
            if (kept or num_held > self._part.num_held) and status.num_free >= 0:
                found.append(self._source(peer, status, kept))
                if kept:
                    break
        return _best(found)

    def better_than(self, slow: str) -> str | None:
        """A peer that is well ahead of this node and has a free place, to replace a slow source.

        A peer without a free place would slow down all that it feeds. If the slow source has no more chunks itself,
        there is no better one: it waits for a source further up in the plan.
        """
        found = []
        for peer, status in self._answers():
            is_ahead = status.num_held(self._name) >= self._part.num_held + self.pace.lead
            if peer == slow and not is_ahead:
                return None
            if peer != slow and is_ahead and status.num_free >= 1:
                found.append(self._source(peer, status))
        return _best(found)

    def instead_of(self, overdue: str) -> str | None:
        """A peer that holds the next chunk, to replace a source that does not send the rest of it.

        Such a source has the chunk, whatever it says.
        """
        self._overdue.add(overdue)
        found = [
            self._source(peer, status)
            for peer, status in self._answers()
            if peer != overdue and status.num_held(self._name) > self._part.num_held and status.num_free >= 0
        ]
        return _best(found)

    def _source(self, peer: str, status: StatusReply, is_kept: bool = False) -> Source:
        planned = self._place.sources
        distance = planned.index(peer) if peer in planned else len(planned) - 1
        return Source(peer, is_kept, self._poor_turns[peer], status.num_free, distance, status.num_held(self._name))

    def _is_to_blame(self, source: str, num_held: int) -> bool:
        """Whether it sent too little although it had more, or repeatedly claims to have no more, or was overdue.

        In a chain that is broken further up, a source has no more chunks for now: only the head of the chain has to
        change its source.
        """
        has_more = num_held >= self._part.num_held + self.pace.lead
        return source in self._overdue or self._poor_turns[source] > (0 if has_more else MAX_POOR_TURNS)

    def _answers(self) -> Iterator[tuple[str, StatusReply]]:
        """Answers of the candidates within half of `stall_s`; a slower peer would be a poor source."""
        asked = [peer for peer in self._candidates() if peer not in self._corrupt][:MAX_ASKED]
        answers = {self._downloads.askers.submit(self._ask, peer): peer for peer in asked}
        try:
            for answer in as_completed(answers, timeout=self._downloads.stall_s / 2):
                if (status := answer.result()) is not None:
                    yield answers[answer], status
        except TimeoutError:
            return
        finally:
            for answer in answers:
                answer.cancel()

    def _candidates(self) -> list[str]:
        transport = self._downloads.transport
        others = {*transport.status().connected, *(peer.peer_id for peer in transport.peers())}
        strangers = sorted(others - {*self._place.sources, transport.peer_id})
        random.shuffle(strangers)
        return list(dict.fromkeys([*filter(None, [self.current]), *self._place.sources, *strangers]))

    def _ask(self, peer_id: str) -> StatusReply | None:
        try:
            return request_status(
                self._downloads.transport, peer_id, StatusRequest(self._version), self._downloads.stall_s / 2
            )
        except (TransportError, Refusal):
            return None


def _best(found: list[Source]) -> str | None:
    return min(found, key=lambda source: source.rank).peer_id if found else None
