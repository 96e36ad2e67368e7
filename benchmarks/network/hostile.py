"""A hostile peer in a process of its own, driven by JSON lines: `python -m benchmarks.network.hostile SPEC`.

It publishes `Attacks` raw on the run's topic, and meanwhile lays a `Siege` to everything else. Nodes that quarantine it
hang up on it; it comes back under another identity, of which some are always connected in advance.

commands  start, flood, quit
events    warm, ready, informed (it has heard honest records), flooded
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.arithmetic import TASKS
from benchmarks.common.children import commands, emit
from benchmarks.common.siege import PEER_ASSAULTS, Siege
from benchmarks.common.stranger import UNBOUNDED
from benchmarks.network.attacks import LYING, Attacker, Attacks
from benchmarks.network.node import LISTEN
from swarm.environments.mixture import TaskMixture
from swarm.errors import PeerUnreachable, Refusal, TransportError
from swarm.net.addresses.dial import by_peer
from swarm.net.hivemind.daemon import Daemon
from swarm.net.records.envelope import read_record
from swarm.net.records.identity import Identity
from swarm.net.records.wire import Limits

SPARES = 2
ENOUGH = 8
"""Honest records to forge, replay and garble."""
WATCH_EVERY_S = 0.25


class Front:
    """One identity: a daemon of its own, connected to every honest node."""

    def __init__(self, daemon: Daemon, identity: Identity, victims: frozenset[str]) -> None:
        """Use a daemon that is connected."""
        self.daemon = daemon
        self.attacker = Attacker(identity)
        self._victims = victims
        self._hearing: asyncio.Task[None] | None = None
        self._besieging: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, folder: Path, index: int, addresses: dict[str, tuple[str, ...]]) -> Front:
        """A new identity, connected to the nodes that are there. Raises `TransportError` or `PeerUnreachable`."""
        identity = Identity.load_or_create(folder / f"hostile-{index}.key")
        daemon = await Daemon.start(listen=(LISTEN,), identity=identity.path, nat=UNBOUNDED)
        try:
            for peer_id, theirs in addresses.items():
                # One that crashed shall not end the attack on the others.
                with contextlib.suppress(PeerUnreachable):
                    await daemon.connect(peer_id, theirs)
            victims = frozenset(addresses) & await daemon.connected()
            if not victims:
                raise PeerUnreachable("no node is there")
        except BaseException:
            await daemon.stop()
            raise
        return cls(daemon, identity, victims)

    def listen(self, topic: str, attacks: Attacks) -> None:
        """Take part in gossip, and remember what honest peers say."""

        def hear(sender: str, record: bytes) -> None:
            with contextlib.suppress(Refusal):
                if sender in self._victims and read_record(record, len(record)).body.peer_id == sender:
                    attacks.hear(record)
                    if attacks.num_heard == ENOUGH:
                        emit("informed")

        self._hearing = asyncio.create_task(self.daemon.subscribe(topic, hear))

    def besiege(self, run_id: str, done: Counter[str]) -> None:
        """Assault everything but gossip, and count in `done`."""
        siege = Siege(self.daemon, self.attacker.identity, run_id, self._victims, done)
        self._besieging = asyncio.create_task(siege.run(PEER_ASSAULTS))

    async def is_welcome(self) -> bool:
        """Whether every honest node is still connected."""
        return await self.daemon.connected() >= self._victims

    async def close(self) -> None:
        """Leave."""
        for task in (self._hearing, self._besieging):
            if task is not None:
                task.cancel()
        await self.daemon.stop()


class Hostile:
    """Identities, one after another, and what they publish."""

    def __init__(self, folder: Path, mixture: TaskMixture) -> None:
        """Keys go to `folder`."""
        self._folder = folder
        self._mixture = mixture
        self._random = random.Random(0)
        self._num_fronts = 0
        self._num_banned = 0
        self._sent: Counter[str] = Counter()
        self._unsent = 0
        self._assaults: Counter[str] = Counter()
        self._spares: asyncio.Queue[Front] = asyncio.Queue(SPARES)

    async def start(self, run_id: str, addresses: Sequence[str]) -> None:
        """Connect the first identity, and others in advance from now on, for ever."""
        self._run_id = run_id
        self._topic = f"swarm/{run_id}/groups"
        self._addresses = by_peer(tuple(addresses))
        self._attacks = Attacks(run_id, Limits(), self._mixture)
        while True:
            try:
                front = await Front.open(self._folder, self._num_fronts, self._addresses)
            except (TransportError, PeerUnreachable) as error:
                logging.warning("no new identity: %s", error)
                await asyncio.sleep(1.0)
                continue
            self._num_fronts += 1
            front.listen(self._topic, self._attacks)
            if self._num_fronts == 1:
                emit("ready", peer_id=front.daemon.peer_id)
            await self._spares.put(front)

    async def flood(self, each: int, lying: int, per_s: float) -> None:
        """Publish `each` records of every kind in random order, under the next identity once banned."""
        kinds = [kind for kind in self._attacks.kinds for _ in range(lying if kind == LYING else each)]
        self._random.shuffle(kinds)
        loop = asyncio.get_running_loop()
        front = await self._spares.get()
        siege = asyncio.create_task(self._besiege())
        began = looked = loop.time()
        for index, kind in enumerate(kinds):
            if loop.time() - looked > WATCH_EVERY_S:
                looked = loop.time()
                front = await self._welcome(front)
            try:
                await front.daemon.publish(self._topic, self._attacks.make(kind, front.attacker))
                self._sent[kind] += 1
            except TransportError as error:
                logging.warning("not published: %s", error)
                self._unsent += 1
            await asyncio.sleep(max(0.0, began + index / per_s - loop.time()))
        siege.cancel()
        emit(
            "flooded",
            seconds=loop.time() - began,
            sent=self._sent,
            unsent=self._unsent,
            variants=self._attacks.made,
            assaults=self._assaults,
            identities=self._num_banned + 1,
            banned=self._num_banned,
        )

    async def _besiege(self) -> None:
        """Assault under one identity after another, until cancelled."""
        while True:
            front = await self._spares.get()
            front.besiege(self._run_id, self._assaults)
            try:
                while await front.is_welcome():
                    await asyncio.sleep(WATCH_EVERY_S)
            except TransportError as error:
                logging.warning("besieging ended: %s", error)
            finally:
                self._num_banned += 1
                await front.close()

    async def _welcome(self, front: Front) -> Front:
        """The same while nobody hung up on it, else the next."""
        with contextlib.suppress(TransportError):
            if await front.is_welcome():
                return front
        self._num_banned += 1
        await front.close()
        return await self._spares.get()

    async def close(self) -> None:
        """End every daemon that waits."""
        while not self._spares.empty():
            await self._spares.get_nowait().close()


async def run(folder: Path) -> None:
    """Obey until told to quit."""
    hostile = Hostile(folder, TaskMixture(TASKS))
    orders = commands()
    tasks: set[asyncio.Task[None]] = set()
    emit("warm")
    while True:
        await asyncio.sleep(0.01)
        for task in tasks:
            if task.done():
                task.result()
        if orders.empty():
            continue
        order = orders.get()
        match order.pop("do"):
            case "start":
                tasks.add(asyncio.create_task(hostile.start(**order)))  # type: ignore[arg-type]
            case "flood":
                tasks.add(asyncio.create_task(hostile.flood(**order)))  # type: ignore[arg-type]
            case "quit":
                await hostile.close()
                return


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    asyncio.run(run(Path(json.loads(sys.argv[1])["folder"])))
