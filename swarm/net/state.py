"""What a node's network side knows, whichever daemon is running: written on the network thread, read on any."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from msgspec import Struct

from swarm.net.config import NetworkSettings
from swarm.net.counters import Counters
from swarm.net.dial import by_peer
from swarm.net.identity import Identity
from swarm.net.mailbox import Mailbox
from swarm.net.nat import candidates, reachability, to_tell
from swarm.net.wire import MAX_MULTIADDRS, MAX_PEER_RECORD_LIFE_S, open_manifest
from swarm.protocols import RequestHandler
from swarm.types import NetworkStatus, PeerRecord, RunManifest

LOOPBACK = ("/ip4/127.", "/ip6/::1/")
OUTBOX_RECORDS = 64
OUTBOX_BYTES = 16 * 2**20
MAX_KNOWN_PEERS = 1_024


class Profile(Struct, frozen=True):
    """What a node tells others about itself."""

    model: str = ""
    tasks: tuple[str, ...] = ()
    role: str = "peer"
    version: str = ""


class NodeState:
    """Everything that outlives a daemon: run, mailboxes, handlers, known peers, counts."""

    def __init__(
        self,
        settings: NetworkSettings,
        identity: Identity,
        profile: Profile,
        manifest: bytes | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """State of a node that has not started. Raises `ConfigError` for an address that names no peer."""
        self.settings = settings
        self.identity = identity
        self.profile = profile
        self.clock = clock
        self.counters = Counters()
        self.inbox = Mailbox(settings.inbox_records, settings.inbox_bytes)
        self.outbox = Mailbox(OUTBOX_RECORDS, OUTBOX_BYTES)
        self.handlers: dict[str, RequestHandler] = {}
        self.bootstrap = {
            peer_id: addresses
            for peer_id, addresses in by_peer(settings.bootstrap).items()
            if peer_id != identity.peer_id
        }
        self.relays = candidates(settings)
        """Relays to hold places at."""
        self.known: dict[str, PeerRecord] = {}
        self.connected: frozenset[str] = frozenset()
        """Peers with an open connection, in the run or not."""
        self.in_run: frozenset[str] = frozenset()
        """Those of them that take part in the run."""
        self.addresses: tuple[str, ...] = ()
        self.alone_since: float | None = clock()
        self.detail = "not started"
        self.sealed: bytes | None = None
        self.manifest: RunManifest | None = None
        self._adopting = threading.Lock()
        if manifest is not None:
            self.adopt(manifest)

    @property
    def topic(self) -> str | None:
        """The gossip topic of the run's groups; None until there is a run."""
        return f"swarm/{self.manifest.run_id}/groups" if self.manifest else None

    def adopt(self, sealed: bytes) -> None:
        """Take a manifest as the run's. Raises `RejectedGroup` when it is invalid or of another run."""
        with self._adopting:
            expected = self.manifest.run_id if self.manifest else self.settings.run_id
            manifest = open_manifest(sealed, expected)
            self.sealed, self.manifest = sealed, manifest

    def receive(self, sender: str, record: bytes) -> None:
        """Take a gossip message in."""
        if sender == self.identity.peer_id:
            return
        if len(record) > self.settings.max_record_bytes:
            self.counters.add("drop_oversized")
            return
        self.counters.add("delivered")
        self.inbox.put(record)

    def handle(self, protocol: str, remote: str, request: bytes) -> bytes:
        """Answer a peer's request; a failing handler is counted, and the peer told."""
        try:
            return self.handlers[protocol](remote, request)
        except Exception:
            self.counters.add("handler_errors")
            raise

    def see(self, connected: frozenset[str], subscribers: frozenset[str]) -> None:
        """Note who is connected now, and who of them subscribes to the run's groups."""
        self.connected = connected
        self.in_run = connected & subscribers if self.manifest else connected
        if self.in_run:
            self.alone_since = None
        elif self.alone_since is None:
            self.alone_since = self.clock()

    def locate(self, addresses: tuple[str, ...]) -> bool:
        """Note the node's own addresses; whether they changed."""
        changed = set(addresses) != set(self.addresses)
        self.addresses = addresses
        return changed

    def reachability(self) -> str | None:
        """In words, whether strangers can reach this node; None when nothing tells."""
        return reachability(self.settings, self.addresses, self.connected)

    def learn(self, records: list[PeerRecord]) -> None:
        """Remember where peers are; the longest expired make room."""
        known = {**self.known, **{record.peer_id: record for record in records}}
        known.pop(self.identity.peer_id, None)
        freshest = sorted(known, key=lambda peer_id: known[peer_id].expires_at)[-MAX_KNOWN_PEERS:]
        self.known = {peer_id: known[peer_id] for peer_id in freshest}

    def own_record(self) -> PeerRecord:
        """This node's entry in the directory, good for three renewals."""
        assert self.manifest is not None
        # An address of this machine only means nothing to others, unless they are on it too: then any will do.
        outward = tuple(address for address in to_tell(self.multiaddrs()) if not address.startswith(LOOPBACK))
        life_s = min(3 * self.settings.announce_every_s, MAX_PEER_RECORD_LIFE_S / 2)
        return PeerRecord(
            self.manifest.run_id,
            self.identity.peer_id,
            (outward or self.multiaddrs())[: MAX_MULTIADDRS // 2],
            self.profile.model,
            self.profile.tasks,
            self.profile.role,
            self.profile.version,
            self.clock() + life_s,
        )

    def multiaddrs(self) -> tuple[str, ...]:
        """Addresses under which others reach this node."""
        return tuple(f"{address}/p2p/{self.identity.peer_id}" for address in self.addresses)

    def status(self) -> NetworkStatus:
        """The network as it is now."""
        run_id = self.manifest.run_id if self.manifest else None
        return NetworkStatus(run_id, tuple(sorted(self.in_run)), self.alone_since, self.detail)
