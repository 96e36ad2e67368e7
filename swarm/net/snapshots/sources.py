"""Which peer gives the next chunks of a part: what all that could say they hold, and how each has given so far.

A peer is turned to for one of two reasons. A source has ended, and the fetch needs another (`after`); or a source is
slow, and the fetch would gain by another (`better_than`). In both cases whoever is turned to holds more than this node,
so that two nodes that wait never wait for each other.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass

from msgspec import Struct

from swarm.errors import Refusal, TransportError
from swarm.net.bandwidth import MIN_RATE_BYTES_PER_S, TokenBucket
from swarm.net.counters import Counters
from swarm.net.records.framing import MAX_CHUNK_BYTES
from swarm.net.snapshots.messages import Ask, News, ask
from swarm.net.snapshots.plan import Place
from swarm.net.snapshots.store import PartName, Stored
from swarm.protocols import Transport
from swarm.reasons import Reason

MAX_ASKED = 8
FED_LITTLE = 1 / 8
MAX_POOR_TURNS = 3
"""How often in a row a source may say that it holds no more than this node."""


@dataclass(frozen=True)
class Downloads:
    """What all fetches of a node have in common."""

    transport: Transport
    stall_s: float
    bucket: TokenBucket
    """What this node takes at most."""
    askers: Executor
    counters: Counters
    complaints: deque[tuple[str, Reason]]
    """(peer id, reason) of what peers did that speaks against them."""
    closing: threading.Event
    """Set once the node stops."""


class Pace(Struct, frozen=True):
    """What may be expected of a source."""

    bytes_per_s: float
    silence_s: float
    """As long as a link may need for a few pieces at its usual rate."""
    lead: int
    """Chunks that another must be ahead to be worth changing to: what the link should bring in `stall_s`."""

    @staticmethod
    def of(place: Place, chunk_bytes: int, stall_s: float) -> Pace:
        """As the plan promises, or the least that any source has to give."""
        rate = place.bytes_per_s or MIN_RATE_BYTES_PER_S
        return Pace(
            bytes_per_s=rate,
            silence_s=max(stall_s, 4 * min(chunk_bytes, MAX_CHUNK_BYTES) / rate),
            lead=max(2, int(rate * stall_s / chunk_bytes)),
        )


class Source(Struct, frozen=True):
    """A peer that could give the next chunk."""

    peer_id: str
    is_kept: bool
    """It has given until now, and is not to blame for having ended."""
    num_poor_turns: int
    """How often in a row it failed after having given too little."""
    num_free: int
    """Others that it could feed as planned; at 0 it takes one more, and all that it feeds become slower."""
    distance: int
    """Its place among the sources that the plan names; others come with the last of them, the learner."""
    num_held: int
    """Chunks that it holds."""

    @property
    def rank(self) -> tuple[bool, int, bool, int, int, str]:
        """Of several sources, the one with the lowest rank is the best; the peer id decides between equals."""
        is_full = self.num_free == 0
        return not self.is_kept, self.num_poor_turns, is_full, self.distance, -self.num_held, self.peer_id


class Sources:
    """The peers that one part may come from."""

    def __init__(self, downloads: Downloads, stored: Stored, name: PartName, place: Place) -> None:
        """Of a version's part `name`; `place` is this node's place in the plan."""
        part = stored.part(name)
        assert part is not None
        self._downloads = downloads
        self._part = part
        self._version = stored.manifest.version
        self._name: PartName = name
        self._place = place
        self.pace = Pace.of(place, part.chunks.chunk_bytes, downloads.stall_s)
        self.current: str | None = None
        """The peer that gives just now, or gave last."""
        self._liars: set[str] = set()
        """They gave a wrong chunk, and are not asked again."""
        self._poor_turns: Counter[str] = Counter()
        """By source: how often in a row it failed after having given too little."""
        self._num_from: Counter[str] = Counter()
        """Chunks that each source gave."""

    @property
    def planned(self) -> str | None:
        """The source that the plan says, unless it has lied."""
        source = self._place.sources[0]
        return source if source not in self._liars else None

    @property
    def failed(self) -> tuple[str, ...]:
        """The source that the plan said, when nearly all of what came had to come from others."""
        source = self._place.sources[0]
        return (source,) if self._num_from[source] < FED_LITTLE * self._num_from.total() else ()

    def gave(self, source: str, num_chunks: int, too_little: bool) -> None:
        """A source has ended after so many chunks; `too_little`: in this time it should have given more."""
        self._num_from[source] += num_chunks
        self._poor_turns[source] = self._poor_turns[source] + 1 if too_little else 0

    def lied(self, source: str) -> None:
        """It gave a wrong chunk."""
        self._liars.add(source)

    def after(self, ended: str | None) -> str | None:
        """The best peer to go on with; None if there is none.

        The source that has just ended is the best one if it still answers, unless it is to blame.
        """
        found = []
        for peer, news in self._answers():
            num_held = news.num_held(self._name)
            kept = peer == ended and not self._is_to_blame(peer, num_held)
            if (kept or num_held > self._part.num_held) and news.num_free >= 0:
                found.append(self._source(peer, news, kept))
                if kept:
                    break
        return _best(found)

    def better_than(self, slow: str) -> str | None:
        """A peer that is well ahead of this node and has a free place, to take chunks from instead of a slow source.

        One more at a peer without a free place would make all that it feeds slow. And there is none if the slow source
        has no more to give: then it waits itself, for one further up in the plan.
        """
        found = []
        for peer, news in self._answers():
            is_ahead = news.num_held(self._name) >= self._part.num_held + self.pace.lead
            if peer == slow and not is_ahead:
                return None
            if peer != slow and is_ahead and news.num_free >= 1:
                found.append(self._source(peer, news))
        return _best(found)

    def _source(self, peer: str, news: News, is_kept: bool = False) -> Source:
        planned = self._place.sources
        distance = planned.index(peer) if peer in planned else len(planned) - 1
        return Source(peer, is_kept, self._poor_turns[peer], news.num_free, distance, news.num_held(self._name))

    def _is_to_blame(self, source: str, num_held: int) -> bool:
        """Whether it gave too little although it had more; or says that it has no more, turn after turn.

        A source in a chain that is cut further up has nothing more just now: only the chain's head has to move.
        """
        has_more = num_held >= self._part.num_held + self.pace.lead
        return self._poor_turns[source] > (0 if has_more else MAX_POOR_TURNS)

    def _answers(self) -> Iterator[tuple[str, News]]:
        """What possible sources say, for as long as is worth waiting: one that is slower is no good source."""
        asked = [peer for peer in self._candidates() if peer not in self._liars][:MAX_ASKED]
        answers = {self._downloads.askers.submit(self._ask, peer): peer for peer in asked}
        try:
            for answer in as_completed(answers, timeout=self._downloads.stall_s / 2):
                if (news := answer.result()) is not None:
                    yield answers[answer], news
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

    def _ask(self, peer_id: str) -> News | None:
        try:
            return ask(self._downloads.transport, peer_id, Ask(self._version), self._downloads.stall_s / 2)
        except (TransportError, Refusal):
            return None


def _best(found: list[Source]) -> str | None:
    return min(found, key=lambda source: source.rank).peer_id if found else None
