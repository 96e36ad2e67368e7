"""Places for incoming connections: who is let in, and who makes room when all places are taken. Pure but for the clock.

    a connection ──▶ handshakes of its address ──▶ a free place, or one that somebody loses ──▶ handshake ──▶ a peer
                            │ too many                    │ nobody has to make room                │ too many of it
                            └──────────▶ closed ◀─────────┘                     its oldest closed ◀┘

Who makes room: first whoever was connected for a while and takes no part in the run, then the address that has far
more places than the newcomer's. Addresses count before peers because identities are free. Members keep their places,
except those of an address that has too many.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from swarm.net.bandwidth import RatePerName
from swarm.net.services.stream_admission import FAIR_LEAD

MAX_PLACES = 128
MAX_PLACES_PER_PEER = 3
PATIENCE_S = 10.0
"""Time for the handshake and for becoming a member; after it, a stranger's place is given to whoever needs one."""
HANDSHAKES_PER_S, HANDSHAKES_AT_ONCE = 20.0, 200.0
"""Per address. Each costs some milliseconds of the node's interpreter."""


class Place:
    """An incoming connection."""

    def __init__(self, address: str, hang_up: Callable[[], None], now: float) -> None:
        """`hang_up` ends it."""
        self.address = address
        self.hang_up = hang_up
        self.since = now
        self.peer_id = ""
        """Empty until the handshake is done."""


class Places:
    """The incoming connections of a host."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """All places are free."""
        self.is_member: Callable[[str], bool] = lambda peer_id: False
        """Whether a peer takes part in this node's run."""
        self._clock = clock
        self._taken: list[Place] = []
        self._handshakes = RatePerName(HANDSHAKES_PER_S, HANDSHAKES_AT_ONCE)

    def __len__(self) -> int:
        """Places that are taken."""
        return len(self._taken)

    def take(self, address: str, hang_up: Callable[[], None]) -> Place | None:
        """A place for a connection from `address`, the machine or network; None if it is to be closed at once."""
        now = self._clock()
        if not self._handshakes.take(address, now):
            return None
        if len(self._taken) >= MAX_PLACES:
            loser = self._loser(address, now)
            if loser is None:
                return None
            self._end(loser)
        self._taken.append(Place(address, hang_up, now))
        return self._taken[-1]

    def name(self, place: Place, peer_id: str) -> None:
        """The handshake is done; of too many connections of one peer, the oldest ends."""
        place.peer_id = peer_id
        own = [each for each in self._taken if each.peer_id == peer_id]
        if len(own) > MAX_PLACES_PER_PEER:
            self._end(own[0])

    def release(self, place: Place) -> None:
        """The connection has ended."""
        if place in self._taken:
            self._taken.remove(place)

    def _loser(self, address: str, now: float) -> Place | None:
        """Who makes room for a connection from `address`."""
        counts = Counter(place.address for place in self._taken)
        strangers = [place for place in self._taken if not self.is_member(place.peer_id)]
        if late := [place for place in strangers if now - place.since >= PATIENCE_S]:
            return max(late, key=lambda place: (counts[place.address], now - place.since))
        greedy, count = counts.most_common(1)[0]
        if count <= counts[address] + FAIR_LEAD:
            return None
        own = [place for place in strangers if place.address == greedy]
        return (own or [place for place in self._taken if place.address == greedy])[0]

    def _end(self, place: Place) -> None:
        self._taken.remove(place)
        place.hang_up()
