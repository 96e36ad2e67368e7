"""Fetching one part of a snapshot from peers: first from the source in the plan, then from others if it fails.

One source at a time sends consecutive chunks from the first missing one on. `Fetching` changes to another source if the
current one

* disconnects, or is silent for `stall_s`, and then does not answer; or delivered less than half of the planned rate
  although it had more chunks;
* delivers less than that rate while another peer is well ahead and has a free slot;
* sends a part of a chunk, and the rest not within the time of the slowest link, while another peer has this chunk;
* sends a wrong chunk, after which it is not asked again for this part.

`Sources` chooses the next one by what peers hold and how they have performed: after the current one has ended
(`after`), or when it is slow and another would be faster (`better_than`). In both cases the new source holds more
chunks than this node, so two waiting nodes never wait for each other. A source that has no more chunks itself is not
left: the first node behind the failed one finds another source, and all nodes behind it keep their sources. On an
overloaded machine all sources are late; the interval between searches grows, so that searching does not add to the
load.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Executor, as_completed
from contextlib import closing
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from swarm.errors import CorruptChunk, PeerUnreachable, Refusal, TransportError
from swarm.extras.learner.snapshots.messages import (
    CHUNKS_PROTOCOL,
    ChunksRequest,
    StatusReply,
    StatusRequest,
    request_status,
)
from swarm.extras.learner.snapshots.plan import Slot
from swarm.extras.learner.snapshots.serving import DirectClient
from swarm.extras.learner.snapshots.store import PartName, Stored
from swarm.net.bandwidth import MIN_RATE_BYTES_PER_S, LinkLimit
from swarm.net.guard import Counters
from swarm.net.records.envelope import MAX_CHUNK_BYTES
from swarm.protocols import Transport
from swarm.reasons import Reason

MAX_ASKED = 8
FED_LITTLE = 1 / 8
MAX_POOR_TURNS = 3
"""How often in a row a source may claim to hold no more chunks than this node."""
STUCK_AFTER_STALLS = 3
FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 1.0
STALLS_IN_WINDOW = 2
"""At half the rate, as many bytes are missing after a window as after a stall."""
MAX_WINDOWS = 4
"""Longest interval between two searches for a faster source, in windows."""
MARKS = 16
"""Time marks per window; old ones are dropped one at a time."""


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
    def of(slot: Slot, limit: float | None, chunk_bytes: int, stall_s: float) -> Pace:
        """From the planned rate, or the minimum rate of any source; at most this node's `limit`."""
        rate = min(slot.bytes_per_s or MIN_RATE_BYTES_PER_S, limit or math.inf)
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
    """Free slots according to the plan; at 0 it accepts one more, which slows down all that it feeds."""
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

    def __init__(self, downloads: Downloads, stored: Stored, name: PartName, slot: Slot) -> None:
        """Sources of part `name` of a version; `slot` is this node's slot in the plan."""
        part = stored.part(name)
        assert part is not None
        self._downloads = downloads
        self._part = part
        self._version = stored.manifest.version
        self._name: PartName = name
        self._slot = slot
        self.pace = Pace.of(slot, downloads.bytes_per_s, part.chunks.chunk_bytes, downloads.stall_s)
        self.current: str | None = None
        """The current or last source."""
        self._corrupt: set[str] = set()
        """Peers that sent a wrong chunk; not asked again."""
        self._overdue: set[str] = set()
        """Peers that sent a part of a chunk, and did not send the rest in time."""
        self._poor_turns: Counter[str] = Counter()
        """Failures in a row, each after too few chunks, by source."""
        self._num_from: Counter[str] = Counter()
        """Chunks received, by source."""

    @property
    def planned(self) -> str | None:
        """The planned source, unless it sent a wrong chunk."""
        source = self._slot.sources[0]
        return source if source not in self._corrupt else None

    @property
    def failed(self) -> tuple[str, ...]:
        """The planned source, if nearly all chunks had to come from others, none came in several turns, or one came too
        slowly."""
        source = self._slot.sources[0]
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
        """A peer that is well ahead of this node and has a free slot, to replace a slow source.

        A peer without a free slot would slow down all that it feeds. If the slow source has no more chunks itself,
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
        planned = self._slot.sources
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
        unplanned = sorted(others - {*self._slot.sources, transport.peer_id})
        random.shuffle(unplanned)
        return list(dict.fromkeys([*filter(None, [self.current]), *self._slot.sources, *unplanned]))

    def _ask(self, peer_id: str) -> StatusReply | None:
        try:
            return request_status(
                self._downloads.transport, peer_id, StatusRequest(self._version), self._downloads.stall_s / 2
            )
        except (TransportError, Refusal):
            return None


def _best(found: list[Source]) -> str | None:
    return min(found, key=lambda source: source.rank).peer_id if found else None


class Fetching:
    """Fetches one part."""

    def __init__(
        self,
        downloads: Downloads,
        stored: Stored,
        name: PartName,
        slot: Slot,
        is_wanted: Callable[[Fetching], bool],
    ) -> None:
        """Fetch part `name` of a version; `slot` is this node's slot in the plan.

        `is_wanted` is called after every piece: whether this version should still be fetched.
        """
        part = stored.part(name)
        assert part is not None
        self.version = stored.manifest.version
        self._downloads = downloads
        self._part = part
        self._name: PartName = name
        self._is_wanted = is_wanted
        self._sources = Sources(downloads, stored, name, slot)
        self._pending = bytearray()
        """Received bytes of the next chunk."""
        self._owed_since = self._heard_at = self._moved_at = time.monotonic()
        """Since when the rest of the pending chunk is owed; when the last bytes came, and the last chunk."""
        slowest = min(self._sources.pace.bytes_per_s, MIN_RATE_BYTES_PER_S) / 2
        self._overdue_s = MAX_WINDOWS * STALLS_IN_WINDOW * downloads.stall_s + part.chunks.chunk_bytes / slowest
        """Longest time between the first and the last byte of a chunk. A source that waits itself sends whole chunks:
        this is the time of the link alone."""

    @property
    def source(self) -> str | None:
        """The current source."""
        return self._sources.current

    @property
    def stuck(self) -> bool:
        """Whether nothing has arrived for long; perhaps no peer has this version any more. Bytes without a chunk count
        as nothing once a second source could have sent one."""
        now = time.monotonic()
        is_silent = now - self._heard_at > STUCK_AFTER_STALLS * self._sources.pace.silence_s
        return is_silent or now - self._moved_at > 2 * self._overdue_s

    @property
    def failed(self) -> tuple[str, ...]:
        """The planned source, if it delivered too little."""
        return self._sources.failed

    def run(self) -> bool:
        """Fetch until the part is complete or no longer wanted; whether it is complete.

        Raises `OSError`, `TransportError`.
        """
        source = self._sources.planned
        pause_s = FIRST_PAUSE_S
        while not self._part.complete and self._goes_on():
            before, began = self._part.num_held, time.monotonic()
            source = self._turn(source)
            if self._part.num_held > before or time.monotonic() - began >= self._downloads.stall_s:
                pause_s = FIRST_PAUSE_S
            else:
                self._downloads.closing.wait(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
        return self._part.complete

    def _goes_on(self) -> bool:
        return not self._downloads.closing.is_set() and self._is_wanted(self)

    def _turn(self, source: str | None) -> str | None:
        """Fetch from one source. Returns the source of the next turn."""
        better = None
        if source is not None:
            before, began = self._part.num_held, time.monotonic()
            better = self._take_from(source)
            num_chunks = self._part.num_held - before
            self._sources.ended(source, num_chunks, self._is_little(num_chunks, time.monotonic() - began))
        if self._part.complete:
            return None
        return better or self._sources.after(source) or self._sources.planned

    def _take_from(self, peer_id: str) -> str | None:
        """Fetch chunks until complete, unwanted or failed (None), or until there is a better source (returned)."""
        if self._sources.current not in (None, peer_id):
            self._downloads.counters.add("reroutes")
        self._sources.current = peer_id
        try:
            return self._take(peer_id)
        except CorruptChunk:
            self._downloads.counters.add("corrupt_chunks")
            self._downloads.complaints.append((peer_id, Reason.CORRUPT_CHUNK))
            self._sources.sent_corrupt(peer_id)
        except PeerUnreachable:
            self._downloads.counters.add("source_failures")
        return None

    def _take(self, peer_id: str) -> str | None:
        part, pace = self._part, self._sources.pace
        room = part.chunks.num_bytes - part.num_bytes_held
        want = ChunksRequest(self.version, self._name, part.num_held)
        window_s = STALLS_IN_WINDOW * self._downloads.stall_s
        window = _Window(window_s)
        better: str | None = None
        self._pending.clear()
        # Before the first chunk, a connection may have to be set up.
        patience_s = pace.silence_s * (1 if part.num_held else 2)
        pieces = self._downloads.stream(peer_id, want, patience_s, room)
        with closing(pieces):
            for piece in pieces:
                self._downloads.closing.wait(self._downloads.bucket.spend(len(piece)))
                self._take_in(piece)
                if not self._goes_on():
                    return None
                if window.is_slow(len(piece), pace.bytes_per_s / 2, time.monotonic()):
                    window.length_s = min(2 * window.length_s, MAX_WINDOWS * window_s)
                    better = self._sources.better_than(peer_id)
                if better is None and self._is_overdue():
                    better = self._sources.instead_of(peer_id)
                if better is not None:
                    return better
        if not part.complete:
            raise PeerUnreachable(f"{peer_id} ended the stream before the part was complete")
        return None

    def _take_in(self, piece: bytes) -> None:
        """Append received bytes and store complete chunks after verification. Raises `CorruptChunk`."""
        part, pending = self._part, self._pending
        self._heard_at = time.monotonic()
        if not pending:
            self._owed_since = self._heard_at
        pending += piece
        while not part.complete and len(pending) >= (size := part.chunks.size(part.num_held)):
            chunk = bytes(memoryview(pending)[:size])
            del pending[:size]
            part.add(chunk)
            self._owed_since = self._moved_at = time.monotonic()
            self._downloads.counters.add("chunks_received")

    def _is_overdue(self) -> bool:
        """Whether the rest of a chunk is owed for too long; if so, its time restarts."""
        now = time.monotonic()
        if not self._pending or now - self._owed_since < self._overdue_s:
            return False
        self._owed_since = now
        return True

    def _is_little(self, num_chunks: int, seconds: float) -> bool:
        """Whether this is less than half of the planned bytes for this time."""
        return num_chunks * self._part.chunks.chunk_bytes < self._sources.pace.bytes_per_s / 2 * seconds


class _Window:
    """Bytes over a sliding window."""

    def __init__(self, length_s: float) -> None:
        self.length_s = length_s
        self._num_bytes = 0
        self._marks: deque[tuple[float, int]] = deque()
        """(time, bytes until then), one per 1/`MARKS` of the window; the first is as old as the window or older."""

    def is_slow(self, num_bytes: int, rate: float, now: float) -> bool:
        """Add bytes; whether the window's rate is below `rate`. If so, the window restarts.

        The first window starts with the first bytes, because the source may have waited for them too.
        """
        self._num_bytes += num_bytes
        marks = self._marks
        if not marks or now - marks[-1][0] >= self.length_s / MARKS:
            marks.append((now, self._num_bytes))
        while len(marks) > 1 and marks[1][0] <= now - self.length_s:
            marks.popleft()
        began, before = marks[0]
        past_s = now - began
        if past_s < self.length_s or self._num_bytes - before >= rate * past_s:
            return False
        marks.clear()
        return True
