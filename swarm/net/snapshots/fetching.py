"""Fetching one part of a snapshot from peers: first from the source in the plan, then from others if it fails.

One source at a time sends consecutive chunks from the first missing one on. The fetch changes to another source if the
current one

* disconnects, or is silent for `stall_s`, and then does not answer; or delivered less than half of the planned rate
  although it had more chunks;
* delivers less than that rate while another peer is well ahead and has a free place;
* sends a part of a chunk, and the rest not within the time of the slowest link, while another peer has this chunk;
* sends a wrong chunk, after which it is not asked again for this part.

A source that has no more chunks itself is not left: the first node behind the failed one finds another source, and all
nodes behind it keep their sources. On an overloaded machine all sources are late; the interval between searches grows,
so that searching does not add to the load.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import closing

from swarm.errors import CorruptChunk, PeerUnreachable
from swarm.net.bandwidth import MIN_RATE_BYTES_PER_S
from swarm.net.snapshots.messages import ChunksRequest
from swarm.net.snapshots.plan import Place
from swarm.net.snapshots.sources import Downloads, Sources
from swarm.net.snapshots.store import PartName, Stored
from swarm.reasons import Reason

STUCK_AFTER_STALLS = 3
FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 1.0
STALLS_IN_WINDOW = 2
"""At half the rate, as many bytes are missing after a window as after a stall."""
MAX_WINDOWS = 4
"""Longest interval between two searches for a faster source, in windows."""
MARKS = 16
"""Time marks per window; old ones are dropped one at a time."""


class Fetching:
    """Fetches one part."""

    def __init__(
        self,
        downloads: Downloads,
        stored: Stored,
        name: PartName,
        place: Place,
        is_wanted: Callable[[Fetching], bool],
    ) -> None:
        """Fetch part `name` of a version; `place` is this node's place in the plan.

        `is_wanted` is called after every piece: whether this version should still be fetched.
        """
        part = stored.part(name)
        assert part is not None
        self.version = stored.manifest.version
        self._downloads = downloads
        self._part = part
        self._name: PartName = name
        self._is_wanted = is_wanted
        self._sources = Sources(downloads, stored, name, place)
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
