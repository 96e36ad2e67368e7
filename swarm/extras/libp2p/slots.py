"""Slots for incoming connections: who is let in, and who makes room when all are taken. Pure but for the clock.

    a connection ──▶ handshakes of its address ──▶ a free slot, or one that somebody loses ──▶ handshake ──▶ a peer
                            │ too many                    │ nobody has to make room                │ too many of it
                            └──────────▶ closed ◀─────────┘                     its oldest closed ◀┘

First a peer makes room that was connected for a while and takes no part in the run, then the address that has far
more slots than the newcomer's. Addresses count before peers because identities are free. Members keep their slots,
except those of an address that has too many.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from swarm.net.bandwidth import RatePerName
from swarm.net.services.streams import FAIR_LEAD

MAX_SLOTS = 128
MAX_SLOTS_PER_PEER = 3
PATIENCE_S = 10.0
"""Time for the handshake and for becoming a member; after it, the slot of a non-member is given to a newcomer."""
HANDSHAKES_PER_S, HANDSHAKES_AT_ONCE = 20.0, 200.0
"""Per address. Each costs some milliseconds of the node's interpreter."""


class Slot:
    """An incoming connection."""

    def __init__(self, address: str, hang_up: Callable[[], None], now: float) -> None:
        """`hang_up` ends it."""
        self.address = address
        self.hang_up = hang_up
        self.since = now
        self.peer_id = ""
        """Empty until the handshake is done."""


class ConnectionSlots:
    """The incoming connections of a host."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_member: Callable[[str], bool] = lambda peer_id: False
        """Whether a peer takes part in this node's run."""
        self._clock = clock
        self._taken: list[Slot] = []
        self._handshakes = RatePerName(HANDSHAKES_PER_S, HANDSHAKES_AT_ONCE)

    def __len__(self) -> int:
        """Slots that are taken."""
        return len(self._taken)

    def take(self, address: str, hang_up: Callable[[], None]) -> Slot | None:
        """A slot for a connection from `address`, the machine or network; None if it is to be closed at once."""
        now = self._clock()
        if not self._handshakes.take(address, now):
            return None
        if len(self._taken) >= MAX_SLOTS:
            loser = self._loser(address, now)
            if loser is None:
                return None
            self._end(loser)
        self._taken.append(Slot(address, hang_up, now))
        return self._taken[-1]

    def name(self, slot: Slot, peer_id: str) -> None:
        """The handshake is done; of too many connections of one peer, the oldest ends."""
        slot.peer_id = peer_id
        own = [each for each in self._taken if each.peer_id == peer_id]
        if len(own) > MAX_SLOTS_PER_PEER:
            self._end(own[0])

    def release(self, slot: Slot) -> None:
        """The connection has ended."""
        if slot in self._taken:
            self._taken.remove(slot)

    def _loser(self, address: str, now: float) -> Slot | None:
        """The connection that makes room for one from `address`."""
        counts = Counter(slot.address for slot in self._taken)
        outsiders = [slot for slot in self._taken if not self.is_member(slot.peer_id)]
        if late := [slot for slot in outsiders if now - slot.since >= PATIENCE_S]:
            return max(late, key=lambda slot: (counts[slot.address], now - slot.since))
        greedy, count = counts.most_common(1)[0]
        if count <= counts[address] + FAIR_LEAD:
            return None
        own = [slot for slot in outsiders if slot.address == greedy]
        return (own or [slot for slot in self._taken if slot.address == greedy])[0]

    def _end(self, slot: Slot) -> None:
        self._taken.remove(slot)
        slot.hang_up()
