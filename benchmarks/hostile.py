"""A hostile peer in a process of its own: an identity, a daemon, and no manners. Driven like `benchmarks.node`.

It records what honest peers publish and floods the run's topic with malformed records and with replays of those.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
from contextlib import suppress
from pathlib import Path

from benchmarks.children import commands, emit
from benchmarks.node import LISTEN
from swarm.errors import PeerUnreachable, TransportError
from swarm.net.daemon import Daemon
from swarm.net.dial import by_peer
from swarm.net.identity import Identity

KEPT = 256
"""Honest records remembered for replays."""


class Hostile:
    """Raw publications on a run's gossip topic."""

    def __init__(self, daemon: Daemon) -> None:
        """Use a daemon that has started."""
        self._daemon = daemon
        self._heard: list[bytes] = []
        self._random = random.Random(0)

    def hear(self, sender: str, record: bytes) -> None:
        """Keep an honest record."""
        # What one publishes comes back on one's own subscription.
        if sender != self._daemon.peer_id and len(self._heard) < KEPT:
            self._heard.append(record)

    def malformed(self) -> bytes:
        """Noise, half a record, a record with one bit changed, or other people's MessagePack."""
        honest = self._random.choice(self._heard) if self._heard else self._random.randbytes(500)
        match self._random.randrange(4):
            case 0:
                return self._random.randbytes(self._random.randrange(1, 2_000))
            case 1:
                return honest[: self._random.randrange(1, len(honest))]
            case 2:
                changed = bytearray(honest)
                changed[self._random.randrange(len(changed))] ^= 1 << self._random.randrange(8)
                return bytes(changed)
            case _:
                return b"\x86" + self._random.randbytes(300)

    def replay(self) -> bytes:
        """An honest record once more."""
        return self._random.choice(self._heard) if self._heard else self.malformed()

    async def flood(self, topic: str, num_malformed: int, num_replays: int, per_s: float) -> None:
        """Publish all of it, in random order."""
        kinds = [True] * num_malformed + [False] * num_replays
        self._random.shuffle(kinds)
        loop = asyncio.get_running_loop()
        began, refused = loop.time(), 0
        for index, bad in enumerate(kinds):
            try:
                await self._daemon.publish(topic, self.malformed() if bad else self.replay())
            except TransportError:
                refused += 1
            await asyncio.sleep(max(0.0, began + index / per_s - loop.time()))
        emit("flooded", seconds=loop.time() - began, refused=refused, heard=len(self._heard))


async def run(folder: Path) -> None:
    """Obey until told to quit."""
    identity = Identity.load_or_create(folder / "hostile.key")
    daemon = await Daemon.start(listen=(LISTEN,), identity=identity.path)
    hostile = Hostile(daemon)
    orders = commands()
    tasks: set[asyncio.Task[None]] = set()
    emit("warm")
    try:
        while True:
            await asyncio.sleep(0.01)
            if orders.empty():
                continue
            order = orders.get()
            if order["do"] == "quit":
                return
            topic = f"swarm/{order['run_id']}/groups"
            if order["do"] == "start":
                for peer_id, addresses in by_peer(tuple(map(str, _list(order["addresses"])))).items():
                    with suppress(PeerUnreachable):
                        await daemon.connect(peer_id, addresses)
                tasks.add(asyncio.create_task(daemon.subscribe(topic, hostile.hear)))
                emit("ready", peer_id=identity.peer_id)
            if order["do"] == "flood":
                counts = int(str(order["malformed"])), int(str(order["replays"]))
                tasks.add(asyncio.create_task(hostile.flood(topic, *counts, float(str(order["per_s"])))))
    finally:
        await daemon.stop()


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    asyncio.run(run(Path(json.loads(sys.argv[1])["folder"])))
