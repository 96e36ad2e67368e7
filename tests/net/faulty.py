"""A transport that does to records what networks do to them."""

from __future__ import annotations

import random
from collections.abc import Collection
from enum import Enum, auto

from swarm.net.in_memory import Heard, MemoryHub, MemoryTransport
from swarm.net.records.envelope import SignedRecord
from swarm.net.records.wire import SealedManifest


class Fault(Enum):
    """What may happen to records on their way."""

    DROP = auto()
    DELAY = auto()
    DUPLICATE = auto()
    REORDER = auto()
    CORRUPT = auto()


class FaultyTransport(MemoryTransport):
    """A `MemoryTransport` of which three in ten records suffer one of some faults before they are drained."""

    def __init__(
        self, hub: MemoryHub, peer_id: str, manifest: SealedManifest | None, faults: Collection[Fault], seed: int
    ):
        super().__init__(hub, peer_id, manifest)
        self.faults = sorted(faults, key=lambda fault: fault.value)
        self._chance = random.Random(seed)
        self.lost: list[bytes] = []
        """Dropped, or garbled."""
        self._held_up: list[Heard] = []

    def _waiting(self) -> list[Heard]:
        """What arrived, less what is lost or held up until a later call."""
        waiting, self._held_up = self._held_up, []
        arrived = [piece for heard in (*waiting, *super()._waiting()) for piece in self._pass(heard)]
        if Fault.REORDER in self.faults:
            self._chance.shuffle(arrived)
        return arrived

    def _pass(self, heard: Heard) -> list[Heard]:
        read, heard_at = heard
        assert isinstance(read, SignedRecord)
        if not self.faults or self._chance.random() >= 0.3:
            return [heard]
        match self._chance.choice(self.faults):
            case Fault.DELAY:
                self._held_up.append(heard)
                return []
            case Fault.DUPLICATE:
                return [heard] * 3
            case Fault.REORDER:
                return [heard]
            case Fault.DROP:
                self.lost.append(read.record)
                return []
            case Fault.CORRUPT:
                self.lost.append(read.record)
                return [(self._read(self._garbled(read.record), read.body.run_id), heard_at)]

    def _garbled(self, record: bytes) -> bytes:
        garbled = bytearray(record)
        garbled[self._chance.randrange(len(garbled))] ^= 1 << self._chance.randrange(8)
        return bytes(garbled if self._chance.random() < 0.7 else garbled[: self._chance.randrange(len(garbled))])
