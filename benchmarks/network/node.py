"""One of our nodes in a separate process, driven by JSON lines: `python -m benchmarks.network.node SPEC`.

commands  start, publish, once, quiet, status, quit
events    warm (everything imported), ready, published, got, wanted and fetched (groups on offer), and an answer to each
          `status` and `once`
"""

from __future__ import annotations

import dataclasses
import json
import logging
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.children import commands, emit
from benchmarks.common.faults import FaultyDaemon
from benchmarks.common.groups import MAX_CHARS, MAX_RECORD_BYTES, benchmark_manifest, chars_for, make_group
from swarm.net.config import NetworkSettings
from swarm.net.hivemind.transport import HivemindTransport
from swarm.net.membership.member import Profile
from swarm.net.records.identity import Identity
from swarm.net.records.wire import Limits
from swarm.net.trust.accounts import SafetySettings
from swarm.net.trust.exchange import Exchange
from swarm.received.intake import PULL_PATIENCE_S

LISTEN = "/ip4/127.0.0.1/tcp/0"
ORDERS_EVERY_S = 0.05


@dataclass(frozen=True)
class Spec:
    """A node's settings; the first argument, as JSON."""

    folder: str
    """Directory of its identity."""
    name: str
    founder: bool = False
    first_sequence: int = 0
    loss: float = 0.0
    delay_s: float = 0.0
    poll_s: float = 0.0
    """Polling interval for arrivals; 0: immediately."""

    patient: bool = False
    """For a learner: long rounds without polling between them."""
    wants: float = 0.0
    """Fraction of the groups on offer that it fetches; it offers its own. 0: it sends its own to everybody."""

    def as_argument(self) -> str:
        """For the command line."""
        return json.dumps(dataclasses.asdict(self))


class Node:
    """Publishes when due, receives groups, and reports both."""

    def __init__(self, spec: Spec) -> None:
        """Import everything, start nothing."""
        import swarm.net.hivemind.daemon  # noqa: F401  this import is slow and must not be part of a figure

        if spec.loss or spec.delay_s:
            FaultyDaemon(spec.loss, spec.delay_s, spec.first_sequence).install()
        self._spec = spec
        self._sequence = spec.first_sequence
        self._identity = Identity.load_or_create(Path(spec.folder) / f"{spec.name}.key")
        self._transport: HivemindTransport | None = None
        self._exchange: Exchange | None = None
        self._size_bytes = 0
        self._every_s = 0.0
        self._due = float("inf")
        self._refused: dict[str, int] = {}
        self._received = 0
        self._wanted: set[str] = set()

    def start(self, bootstrap: list[str]) -> None:
        """Join the swarm."""
        settings = NetworkSettings(
            bootstrap=tuple(bootstrap),
            listen=(LISTEN,),
            nat_port_map=False,
            retry_s=0.5,
            max_record_bytes=MAX_RECORD_BYTES,
            inbox_bytes=4 * MAX_RECORD_BYTES,
            shelf_bytes=4 * MAX_RECORD_BYTES,
        )
        sealed = benchmark_manifest(self._identity) if self._spec.founder else None
        self._transport = HivemindTransport(settings, self._identity, sealed, Profile(model="tiny", version="bench"))
        self._transport.start()
        limits = Limits(max_record_bytes=MAX_RECORD_BYTES, max_completion_chars=MAX_CHARS)
        # Three of the largest groups in a row are more than the default rate of one peer allows.
        safety = SafetySettings(bytes_per_min=10 * MAX_RECORD_BYTES)
        self._exchange = Exchange(self._transport, self._identity, limits, safety)
        emit("ready", at=time.time(), peer_id=self._identity.peer_id, addresses=list(self._transport.multiaddrs()))

    def publish(self, size_bytes: int, every_s: float) -> None:
        """Share groups periodically; the first after a fraction of the interval that differs between nodes."""
        self._size_bytes, self._every_s = size_bytes, every_s
        chars_for(size_bytes)
        self._due = time.monotonic() + every_s * (sum(self._identity.peer_id.encode()) % 97) / 97

    def quiet(self) -> None:
        """Stop sharing."""
        self._due = float("inf")

    def once(self, size_bytes: int) -> bool:
        """Share one group; returns whether the network accepted it."""
        assert self._exchange is not None
        group = make_group(self._sequence, chars_for(size_bytes))
        (shared,) = self._exchange.share_all([group]) if self._spec.wants else [self._exchange.share(group)]
        if shared is not None:
            emit("published", sequence=group.sequence, at=group.created_at, size_bytes=size_bytes)
            self._sequence += 1
        return shared is not None

    def step(self) -> None:
        """Publish what is due and process arrivals."""
        if self._exchange is None:
            return
        if time.monotonic() >= self._due:
            self._due += self._every_s
            self.once(self._size_bytes)
        groups, refused = self._exchange.receive()
        now = time.time()
        for reason, count in refused.items():
            self._refused[reason] = self._refused.get(reason, 0) + count
        self._fetch(self._exchange)
        arrived = [now - each.group.created_at for each in groups if each.content_id in self._wanted]
        if arrived:
            emit("fetched", latencies_s=arrived)
        if groups:
            self._received += len(groups)
            emit("got", at=now, groups=[(each.peer_id, each.group.sequence) for each in groups])

    def _fetch(self, exchange: Exchange) -> None:
        """Ask for some of what is on offer."""
        chosen = [each for each in exchange.offers() if random.random() < self._spec.wants]
        for offered in chosen:
            exchange.pull(offered, PULL_PATIENCE_S)
            exchange.report(offered.peer_id, "used")
        if chosen:
            ids = [each.offer.content_id.hex() for each in chosen]
            self._wanted.update(ids)
            emit("wanted", ids=ids)

    def rest(self) -> None:
        """Wait until something is due, a group arrives, or commands must be checked."""
        idle_s = min(ORDERS_EVERY_S, max(0.0, self._due - time.monotonic()))
        if self._exchange is not None and not self._spec.poll_s:
            self._exchange.wait(idle_s)
        else:
            time.sleep(self._spec.poll_s or idle_s)

    def status(self) -> None:
        """Report the status."""
        connected = self._transport.status().connected if self._transport else ()
        run_id = self._transport.status().run_id if self._transport else None
        counters = self._transport.counters() if self._transport else {}
        emit(
            "status",
            connected=len(connected),
            run_id=run_id,
            counters=counters,
            refused=self._refused,
            received=self._received,
        )

    def close(self) -> None:
        """Leave."""
        if self._transport is not None:
            self._transport.close()


def main() -> None:
    """Execute commands until told to quit, or until the driver exits."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    spec = Spec(**json.loads(sys.argv[1]))
    node = Node(spec)
    orders = commands()
    emit("warm")
    while True:
        while not orders.empty():
            order = orders.get()
            match order.pop("do"):
                case "start":
                    node.start(**order)  # type: ignore[arg-type]
                case "publish":
                    node.publish(**order)  # type: ignore[arg-type]
                case "once":
                    emit("once", shared=node.once(**order))  # type: ignore[arg-type]
                case "quiet":
                    node.quiet()
                case "status":
                    node.status()
                case "quit":
                    node.close()
                    return
        node.step()
        node.rest()


if __name__ == "__main__":
    main()
