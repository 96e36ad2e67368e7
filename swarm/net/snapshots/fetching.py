"""One part of a snapshot, from whoever has it: the source that the plan says, and others when that one fails.

One source at a time gives chunk after chunk from the first missing one on. It is left for another holder when it hangs
up or is silent for `stall_s` and then does not answer, or gave less than half of what the plan promises though it had
more to give; when it gives less than that while somebody else is well ahead and has a place free; and when it gives a
wrong chunk, after which it is not asked again for this part. Whoever else is turned to holds more than this node: so
two that wait never wait for each other. A source that has no more itself is waited with: whoever is next to the one
that fails finds another, and all behind it get theirs as before. On a machine that is too busy all are late, and others
are asked ever more seldom, so that looking for better sources does not make it worse.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, as_completed
from contextlib import closing

import msgspec

from swarm.errors import CorruptChunk, PeerUnreachable, RejectedGroup, TransportError
from swarm.net.bandwidth import MIN_RATE_BYTES_PER_S, TokenBucket
from swarm.net.counters import Counters
from swarm.net.records.framing import MAX_CHUNK_BYTES
from swarm.net.snapshots.plan import Place
from swarm.net.snapshots.serving import ASK_PROTOCOL, CHUNKS_PROTOCOL, Ask, News, Want
from swarm.net.snapshots.store import PartName, Stored
from swarm.protocols import Transport

MAX_ASKED = 8
STUCK_AFTER_STALLS = 3
FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 1.0
STALLS_IN_WINDOW = 2
"""At half the rate: as much is missed in a window as in a stall, whether it is slow throughout or pauses."""
MAX_WINDOWS = 4
"""Of slowness, from one search that found nothing better to the next."""
MARKS = 16
"""Of bytes over a window: old ones are dropped one at a time."""
FED_LITTLE = 1 / 8
MAX_POOR_TURNS = 3
"""So often in a row a source may say that it has no more itself."""


class Fetching:
    """Gets one part."""

    def __init__(
        self,
        transport: Transport,
        stored: Stored,
        name: PartName,
        place: Place,
        *,
        stall_s: float,
        bucket: TokenBucket,
        askers: Executor,
        counters: Counters,
        complain: Callable[[str], None],
        stopped: Callable[[], bool],
        pause: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`stopped` says when to give up; `complain` hears of a peer that gave a wrong chunk."""
        part = stored.part(name)
        assert part is not None
        self._transport = transport
        self._part = part
        self._version = stored.manifest.version
        self._name: PartName = name
        self._place = place
        self._stall_s = stall_s
        self._bucket = bucket
        self._askers = askers
        self._counters = counters
        self._complain = complain
        self._stopped = stopped
        self._pause = pause
        self._clock = clock
        self._pending = bytearray()
        """Of the next chunk."""
        self._liars: set[str] = set()
        self._poor_turns: Counter[str] = Counter()
        """By source: how often in a row it failed after having given too little."""
        self._moved_at = clock()
        self._num_from: Counter[str] = Counter()
        """Chunks that each source gave."""
        self.source: str | None = None
        """Who gives just now."""

    @property
    def stuck(self) -> bool:
        """Whether no chunk has come for long: it may be that nobody has this version any more."""
        return self._clock() - self._moved_at > STUCK_AFTER_STALLS * self._silence_s()

    @property
    def failed(self) -> tuple[str, ...]:
        """The source that the plan said, when nearly all of what came had to come from others."""
        source, num_chunks = self._place.sources[0], self._num_from.total()
        return (source,) if self._num_from[source] < FED_LITTLE * num_chunks else ()

    def run(self) -> bool:
        """Fetch until the part is complete, or until stopped; whether it is. Raises `OSError`, `TransportError`."""
        source: str | None = self._place.sources[0]
        pause_s = FIRST_PAUSE_S
        while not self._part.complete and not self._stopped():
            before, began = self._part.num_held, self._clock()
            better = self._take_from(source) if source is not None else None
            if source is not None:
                self._num_from[source] += self._part.num_held - before
            if self._part.complete:
                break
            if source is not None:
                poor = self._gave_little(before, began)
                self._poor_turns[source] = self._poor_turns[source] + 1 if poor else 0
            source = better or self._find(1, keep=source)
            if source is None and self._place.sources[0] not in self._liars:
                source = self._place.sources[0]
            if self._part.num_held > before or self._clock() - began >= self._stall_s:
                pause_s = FIRST_PAUSE_S
            else:
                self._pause(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
        self.source = None
        return self._part.complete

    def _take_from(self, peer_id: str) -> str | None:
        """Take chunks until complete, stopped, failed (None) or until there is a better source (which)."""
        if self.source not in (None, peer_id):
            self._counters.add("reroutes")
        self.source = peer_id
        try:
            return self._take(peer_id)
        except CorruptChunk:
            self._counters.add("corrupt_chunks")
            self._liars.add(peer_id)
            self._complain(peer_id)
        except PeerUnreachable:
            self._counters.add("source_failures")
        return None

    def _take(self, peer_id: str) -> str | None:
        part = self._part
        room = part.chunks.num_bytes - part.num_bytes_held
        want = msgspec.msgpack.encode(Want(self._version, self._name, part.num_held))
        window_s = STALLS_IN_WINDOW * self._stall_s
        window = _Window(self._clock, window_s)
        self._pending.clear()
        # Where nothing has come yet, a connection may have to be made first.
        patience_s = self._silence_s() * (1 if part.num_held else 2)
        pieces = self._transport.stream(peer_id, CHUNKS_PROTOCOL, want, patience_s, room)
        with closing(pieces):
            for piece in pieces:
                self._pause(self._bucket.spend(len(piece)))
                self._take_in(piece)
                if self._stopped():
                    return None
                if window.is_slow(len(piece), self._expected() / 2):
                    window.length_s = min(2 * window.length_s, MAX_WINDOWS * window_s)
                    better = self._find(self._lead(), but=peer_id)
                    if better is not None:
                        return better
        if not part.complete:
            raise PeerUnreachable(f"{peer_id} ended before the part did")
        return None

    def _take_in(self, piece: bytes) -> None:
        """Put the bytes that arrived together to chunks as they were signed. Raises `CorruptChunk`."""
        part, pending = self._part, self._pending
        pending += piece
        while not part.complete and len(pending) >= (size := part.chunks.size(part.num_held)):
            chunk = bytes(memoryview(pending)[:size])
            del pending[:size]
            part.add(chunk)
            self._moved_at = self._clock()
            self._counters.add("chunks_received")

    def _gave_little(self, before: int, began: float) -> bool:
        """Whether fewer bytes than half of what the plan promises have come since there were `before` chunks."""
        num_bytes = (self._part.num_held - before) * self._part.chunks.chunk_bytes
        return num_bytes < self._expected() / 2 * (self._clock() - began)

    def _expected(self) -> float:
        return self._place.bytes_per_s or MIN_RATE_BYTES_PER_S

    def _silence_s(self) -> float:
        """As long as a link may need for a few pieces at its usual rate."""
        piece_bytes = min(self._part.chunks.chunk_bytes, MAX_CHUNK_BYTES)
        return max(self._stall_s, 4 * piece_bytes / self._expected())

    def _lead(self) -> int:
        """Chunks that another must be ahead to be worth changing to: what the link should bring in `stall_s`."""
        return max(2, int(self._expected() * self._stall_s / self._part.chunks.chunk_bytes))

    def _find(self, lead: int, *, but: str | None = None, keep: str | None = None) -> str | None:
        """A peer that holds so many chunks more than this node and takes on others: the best, None if there is none.

        Instead of `but`, which is slow, only one with a free place will do: one more at a full node would make all that
        it feeds slow. And none at all if it has no more to give: then it waits itself, for one further up.

        `keep`, which has given until now, is the best one if it still answers, unless it is to blame. Who has given too
        little is turned to again after all others.
        """
        found: list[tuple[bool, int, bool, int, int, str]] = []
        for peer, news in self._answers():
            held = news.whole if self._name == "whole" else news.change
            ahead = held >= self._part.num_held + lead
            if peer == but:
                if not ahead:
                    return None
                continue
            kept = peer == keep and not self._is_to_blame(peer, held)
            if (kept or ahead) and news.num_free >= (1 if but else 0):
                poor = self._poor_turns[peer]
                found.append((not kept, poor, news.num_free == 0, self._distance(peer), -held, peer))
                if kept:
                    break
        return min(found)[-1] if found else None

    def _answers(self) -> Iterator[tuple[str, News]]:
        """What those say who could be a source, for as long as is worth waiting: who is slower is no good source."""
        asked = [peer for peer in self._candidates() if peer not in self._liars][:MAX_ASKED]
        answers = {self._askers.submit(self._ask, peer): peer for peer in asked}
        try:
            for answer in as_completed(answers, timeout=self._stall_s / 2):
                if (news := answer.result()) is not None:
                    yield answers[answer], news
        except TimeoutError:
            return
        finally:
            for answer in answers:
                answer.cancel()

    def _is_to_blame(self, source: str, held: int) -> bool:
        """Whether it gave too little although it had more; or says that it has no more, turn after turn.

        Who gives from a chain that is cut further up has nothing more just now: only the chain's head has to move.
        """
        poor = self._poor_turns[source]
        return poor > (0 if held >= self._part.num_held + self._lead() else MAX_POOR_TURNS)

    def _distance(self, peer: str) -> int:
        sources = self._place.sources
        return sources.index(peer) if peer in sources else len(sources) - 1

    def _candidates(self) -> list[str]:
        others = {*self._transport.status().connected, *(peer.peer_id for peer in self._transport.peers())}
        strangers = sorted(others - {*self._place.sources, self._transport.peer_id})
        random.shuffle(strangers)
        return list(dict.fromkeys([*filter(None, [self.source]), *self._place.sources, *strangers]))

    def _ask(self, peer_id: str) -> News | None:
        try:
            return ask(self._transport, peer_id, Ask(self._version), self._stall_s / 2)
        except (TransportError, RejectedGroup):
            return None


class _Window:
    """Bytes over the last while, which slides."""

    def __init__(self, clock: Callable[[], float], length_s: float) -> None:
        self._clock = clock
        self.length_s = length_s
        self._num_bytes = 0
        self._marks: deque[tuple[float, int]] = deque()
        """(when, bytes until then), one in a `MARKS`th of the window; the first is as old as the window, or older."""

    def is_slow(self, num_bytes: int, rate: float) -> bool:
        """Add bytes; whether fewer came than at this rate. It begins anew when they did.

        The first begins with the first bytes: whoever gives them may have had to wait for them, too.
        """
        now = self._clock()
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


def ask(transport: Transport, peer_id: str, question: Ask, timeout_s: float) -> News:
    """A peer's answer. Raises `PeerUnreachable`, `RejectedGroup` when it cannot be read."""
    answer = transport.request(peer_id, ASK_PROTOCOL, msgspec.msgpack.encode(question), timeout_s)
    try:
        return msgspec.msgpack.decode(answer, type=News)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RejectedGroup("malformed", str(error)) from error
