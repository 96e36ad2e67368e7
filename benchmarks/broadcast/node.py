"""One node of the broadcast benchmark: `python -m benchmarks.broadcast.node SPEC`, then JSON lines.

commands  start (bootstrap, listen), follow (learner, star), publish (version, num_bytes), leave, status, quit
events    warm, ready (peer_id, addresses), following, published (version, at, digest), installed (version, at, digest),
          status, left

`follow` starts again with an empty folder: one network serves several broadcasts.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import queue
import random
import shutil
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import swarm.extras.learner.snapshots.plan as placement_module
from benchmarks.common.children import Json, commands, emit
from benchmarks.common.groups import benchmark_manifest
from swarm.extras.learner.snapshots.plan import LinkLimits, RelayPlan, Slot
from swarm.extras.learner.snapshots.publish import Publisher
from swarm.extras.learner.snapshots.store import cut
from swarm.extras.learner.snapshots.subscribe import Subscriber
from swarm.files import RandomAccessFile
from swarm.net.config import NetworkSettings, SnapshotSettings
from swarm.net.hivemind.transport import HivemindTransport
from swarm.net.membership.member import Profile
from swarm.net.records.identity import Identity

LOOK_EVERY_S, LOOK_SELDOM_S = 0.005, 0.05
"""The latter with limited links: frequent polling by many nodes would use up the processor."""


class Star(RelayPlan):
    """The baseline: the learner serves everybody itself."""

    def __init__(
        self,
        learner: str,
        limits: LinkLimits,
        workers: Mapping[str, LinkLimits],
        fan_out: int,
        *,
        tried: Collection[str] = (),
        idle: Collection[str] = (),
        suspected: Collection[str] = (),
        apart: Collection[tuple[str, str]] = (),
    ) -> None:
        """Every worker's source is the learner."""
        share = limits.up / max(1, len(workers)) if limits.up else None
        self.bytes_per_s = share
        self.slots = {worker: Slot((learner,), 0, share) for worker in workers}
        self.slots[learner] = Slot((), len(workers), None)


@dataclass(frozen=True)
class Spec:
    """A node's settings; the first argument, as JSON."""

    folder: str
    name: str
    bytes_per_s: int | None
    """Rate limits of uploads and downloads."""
    founder: bool = False

    def as_argument(self) -> str:
        """For the command line."""
        return json.dumps(dataclasses.asdict(self))


class Node:
    """Relays snapshots and reports when it has one."""

    def __init__(self, spec: Spec) -> None:
        """Import everything, start nothing."""
        import swarm.net.hivemind.daemon  # noqa: F401  this import is slow and must not be part of a figure

        self._spec = spec
        self._folder = Path(spec.folder) / spec.name
        self._identity = Identity.load_or_create(self._folder / "identity.key")
        self._settings = NetworkSettings()
        self._transport: HivemindTransport | None = None
        self._publisher: Publisher | None = None
        self._subscriber: Subscriber | None = None

    def start(self, bootstrap: list[str], listen: str = "/ip4/127.0.0.1/tcp/0") -> None:
        """Join the swarm."""
        self._settings = NetworkSettings(
            bootstrap=tuple(bootstrap),
            listen=(listen,),
            nat_port_map=False,
            retry_s=0.5,
            upload_bytes_per_s=self._spec.bytes_per_s,
            download_bytes_per_s=self._spec.bytes_per_s,
            snapshots=SnapshotSettings(delta=False),
        )
        sealed = benchmark_manifest(self._identity) if self._spec.founder else None
        self._transport = HivemindTransport(self._settings, self._identity, sealed, Profile(version="bench"))
        self._transport.start()
        emit("ready", at=time.time(), peer_id=self._identity.peer_id, addresses=list(self._transport.multiaddrs()))

    def follow(self, learner: str, star: bool) -> None:
        """Start as the learner, or as a relaying worker, with nothing on disk."""
        assert self._transport is not None
        vars(placement_module)["RelayPlan"] = Star if star else RelayPlan
        while self._transport.manifest() is None:
            time.sleep(LOOK_EVERY_S)
        folder = self._folder / "snapshots"
        if learner == self._identity.peer_id:
            self._publisher = Publisher(self._transport, self._identity, folder, self._settings)
            self._publisher.start()
        else:
            self._subscriber = Subscriber(self._transport, learner, folder, self._settings)
            if star:
                _feed_nobody(self._subscriber)
            self._subscriber.start()
        emit("following")

    def leave(self) -> None:
        """Stop relaying and delete the snapshots."""
        for part in (self._publisher, self._subscriber):
            if part is not None:
                part.close()
        self._publisher = self._subscriber = None
        shutil.rmtree(self._folder / "snapshots", ignore_errors=True)
        emit("left")

    def publish(self, version: int, num_bytes: int) -> None:
        """As the learner."""
        assert self._publisher is not None
        snapshot = RandomAccessFile(self._folder / "snapshots" / f"packed-{version}", fresh=True)
        snapshot.write(0, random.Random(version).randbytes(num_bytes))
        emit("published", version=version, at=time.time(), digest=cut(snapshot, None)[1].hex())
        self._publisher.publish(version, snapshot)

    def look(self) -> None:
        """Whether there is a snapshot."""
        if self._subscriber is not None and (found := self._subscriber.newest()) is not None:
            at = time.time()
            version, snapshot = found
            emit("installed", version=version, at=at, digest=cut(snapshot, None)[1].hex())

    def status(self) -> None:
        """Report the status."""
        publisher, subscriber = self._publisher, self._subscriber
        following = publisher or subscriber
        progress = following.progress() if following else None
        emit(
            "status",
            connected=len(self._transport.status().connected) if self._transport else 0,
            placed=len(publisher._placement.plan.slots) - 1 if publisher else 0,
            rate=subscriber._slot.bytes_per_s if subscriber else None,
            source=progress.source if progress else None,
            fraction=progress.fraction if progress else 0.0,
            feeds=progress.feeds if progress else (),
            counters=following.counters() if following else {},
        )

    def close(self) -> None:
        """Leave."""
        self.leave()
        if self._transport is not None:
            self._transport.close()


def _feed_nobody(subscriber: Subscriber) -> None:
    """Accept no worker beyond the plan, not even one whose learner is silent."""
    uploads = subscriber._serving.uploads
    uploads.follow(Slot((), -1, None))
    uploads.follow = lambda slot, second=(): None  # type: ignore[method-assign]


def main() -> None:
    """Execute commands until told to quit, or until the driver exits."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    spec = Spec(**json.loads(sys.argv[1]))
    node = Node(spec)
    orders = commands()
    emit("warm")
    while True:
        try:
            order: Json = orders.get(timeout=LOOK_SELDOM_S if spec.bytes_per_s else LOOK_EVERY_S)
        except queue.Empty:
            node.look()
            continue
        do = str(order.pop("do"))
        if do == "quit":
            node.close()
            return
        getattr(node, do)(**order)


if __name__ == "__main__":
    main()
