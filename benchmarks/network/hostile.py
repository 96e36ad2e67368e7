"""A hostile peer in a separate process, driven by JSON lines: `python -m benchmarks.network.hostile SPEC`.

It publishes `Attacks` raw in its feed, and meanwhile runs `ServiceAttacks` on everything else. Nodes that
quarantine it close its connections; it returns under another identity, of which some are always connected in advance.

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
from benchmarks.common.service_attacks import PEER_ATTACKS, ServiceAttacks
from benchmarks.network.attacks import LYING, NOBODY_HOLDS, Attacker, Attacks
from benchmarks.network.node import LISTEN
from swarm.environments.mixture import TaskMixture
from swarm.errors import PeerUnreachable, Refusal, TransportError
from swarm.net.addresses.dial import by_peer
from swarm.net.hivemind.daemon import Daemon
from swarm.net.records.envelope import read_record
from swarm.net.records.identity import Identity
from swarm.net.records.wire import Limits
from tests.attacks.own_feed import OwnFeed
from tests.attacks.stranger import UNBOUNDED

SPARES = 2
ENOUGH = 8
"""Honest records to forge, replay and garble."""
WATCH_EVERY_S = 0.25


class Front:
    """One identity with its own daemon, connected to every honest node."""

    def __init__(self, daemon: Daemon, identity: Identity, victims: frozenset[str]) -> None:
        """Use a daemon that is connected."""
        self.daemon = daemon
        self.attacker = Attacker(identity)
        self._victims = victims
        self.feed = OwnFeed(daemon)
        self._hearing: list[asyncio.Task[None]] = []
        self._attacking: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, folder: Path, index: int, addresses: dict[str, tuple[str, ...]]) -> Front:
        """A new identity, connected to all live nodes. Raises `TransportError` or `PeerUnreachable`."""
        identity = Identity.load_or_create(folder / f"hostile-{index}.key")
        daemon = await Daemon.start(listen=(LISTEN,), identity=identity.path, nat=UNBOUNDED)
        try:
            for peer_id, theirs in addresses.items():
                # A crashed node must not end the attack on the others.
                with contextlib.suppress(PeerUnreachable):
                    await daemon.connect(peer_id, theirs)
            victims = frozenset(addresses) & await daemon.connected()
            if not victims:
                raise PeerUnreachable("no node is reachable")
        except BaseException:
            await daemon.stop()
            raise
        return cls(daemon, identity, victims)

    async def listen(self, run_id: str, attacks: Attacks) -> None:
        """Take part in the run, and remember honest peers' records."""

        def hear(sender: str, record: bytes) -> None:
            with contextlib.suppress(Refusal):
                if sender in self._victims and read_record(record, len(record)).body.peer_id == sender:
                    attacks.hear(record)
                    if attacks.num_heard == ENOUGH:
                        emit("informed")

        await self.feed.take_part(run_id)
        self._hearing = [asyncio.create_task(self.feed.read(victim, hear)) for victim in self._victims]

    def attack_services(self, run_id: str, done: Counter[str]) -> None:
        """Attack everything except gossip, and count in `done`."""
        attack = ServiceAttacks(self.daemon, self.feed, self.attacker.identity, run_id, self._victims, done)
        self._attacking = asyncio.create_task(attack.run(PEER_ATTACKS))

    async def is_welcome(self) -> bool:
        """Whether every honest node is still connected."""
        return await self.daemon.connected() >= self._victims

    async def close(self) -> None:
        """Leave."""
        for task in (*self._hearing, self._attacking):
            if task is not None:
                task.cancel()
        await self.daemon.stop()


class Hostile:
    """Successive identities and their records."""

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
        """Connect the first identity, and keep others connected in advance."""
        self._run_id = run_id
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
            await front.listen(self._run_id, self._attacks)
            if self._num_fronts == 1:
                emit("ready", peer_id=front.daemon.peer_id)
            await self._spares.put(front)

    async def flood(self, each: int, lying: int, per_s: float) -> None:
        """Publish `each` records of every kind, under the next identity once banned."""
        kinds = [kind for kind in self._attacks.kinds for _ in range(lying if kind == LYING else each)]
        self._random.shuffle(kinds)
        # First what the feed can contain for long: followers leave it at the first of the others.
        kinds.sort(key=NOBODY_HOLDS.__contains__)
        loop = asyncio.get_running_loop()
        front = await self._spares.get()
        attack = asyncio.create_task(self._attack_services())
        began = looked = loop.time()
        for index, kind in enumerate(kinds):
            if loop.time() - looked > WATCH_EVERY_S:
                looked = loop.time()
                front = await self._welcome(front)
            try:
                front.feed.publish(self._attacks.make(kind, front.attacker))
                self._sent[kind] += 1
            except TransportError as error:
                logging.warning("not published: %s", error)
                self._unsent += 1
            await asyncio.sleep(max(0.0, began + index / per_s - loop.time()))
        attack.cancel()
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

    async def _attack_services(self) -> None:
        """Attack under one identity after another, until cancelled."""
        while True:
            front = await self._spares.get()
            front.attack_services(self._run_id, self._assaults)
            try:
                while await front.is_welcome():
                    await asyncio.sleep(WATCH_EVERY_S)
            except TransportError as error:
                logging.warning("service attacks ended: %s", error)
            finally:
                self._num_banned += 1
                await front.close()

    async def _welcome(self, front: Front) -> Front:
        """The same identity while all nodes keep its connections, else the next."""
        with contextlib.suppress(TransportError):
            if await front.is_welcome():
                return front
        self._num_banned += 1
        await front.close()
        return await self._spares.get()

    async def close(self) -> None:
        """End all spare daemons."""
        while not self._spares.empty():
            await self._spares.get_nowait().close()


async def run(folder: Path) -> None:
    """Execute commands until told to quit."""
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
