"""What a node knows of its swarm: the run that it is in, and other peers.

The run is the founder's sealed manifest. Peers are connected, known, remembered from earlier, or banned.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from swarm.errors import ConfigError, Refusal
from swarm.lru import LruDict
from swarm.net.addresses.bootstrap import Bootstraps, read_addresses, write_addresses
from swarm.net.addresses.dial import by_peer
from swarm.net.addresses.nat import candidates
from swarm.net.config import NetworkSettings
from swarm.net.guard import Counters
from swarm.net.records.wire import SealedManifest, is_outdated, open_manifest, open_peer_record
from swarm.reasons import Reason
from swarm.types import PeerRecord

logger = logging.getLogger(__name__)

MAX_KNOWN_PEERS = 1_024
MAX_REMEMBERED_PEERS = 64
MAX_SEEN_PEERS = 4_096
RETURNED_S = 60.0
"""For so long after it reconnects, a peer is excused for what it offered before a restart."""
EXCUSED_EVERY_S = 3_600.0
"""Interval between two returns that excuse a peer: one that withholds cannot reconnect for each offer."""
NEVER_OWN = frozenset({Reason.MALFORMED, Reason.BAD_SIGNATURE, Reason.WRONG_PEER})
"""Refusals of a peer's record that neither another clock, run, version nor setting explains."""


class Returns:
    """Peers that have lately reconnected, as restarted nodes do."""

    def __init__(self) -> None:
        self._seen = LruDict[str, float](MAX_SEEN_PEERS)
        """When each peer was last excused, in monotonic seconds; minus infinity for never. The latest come last."""
        self._returned: dict[str, float] = {}
        """When those that are connected came back."""

    def update(self, before: Collection[str], connected: Collection[str], now: float) -> None:
        """The peers with a connection are now these."""
        for peer_id in (peer_id for peer_id in connected if peer_id not in before):
            last = self._seen.pop(peer_id, None)
            if last is not None and now - last >= EXCUSED_EVERY_S:
                self._returned[peer_id] = last = now
            self._seen[peer_id] = -math.inf if last is None else last
        self._returned = {peer_id: at for peer_id, at in self._returned.items() if peer_id in connected}

    def excuse(self, peer_id: str, now: float) -> bool:
        """Whether it came back so lately that it may not have what it offered before."""
        return now - self._returned.get(peer_id, -math.inf) <= RETURNED_S


class KnownPeers:
    """Other nodes, their addresses and their state here. Written on the network thread, readable on any."""

    def __init__(
        self,
        settings: NetworkSettings,
        own_id: str,
        run: CurrentRun,
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        """Only bootstraps and remembered peers. Raises `ConfigError` for an address without a valid peer id."""
        by_peer(settings.trusted_relays)  # checks them
        self._settings = settings
        self._own_id = own_id
        self._run = run
        self._counters = counters
        self._clock = clock
        self.bootstraps = Bootstraps(settings.bootstrap)
        self.bootstraps.look_up()
        self.remembered = _remembered(settings.remember)
        """Addresses of peers met earlier, also by an earlier process; the most recent come last."""
        self.known: dict[str, tuple[PeerRecord, bytes]] = {}
        """Peers' own records, decoded and as signed; may have expired."""
        self.reported_by: dict[str, str] = {}
        """The peer that first passed on each known peer's record; empty for the directory."""
        self.banned: frozenset[str] = frozenset()
        self.connected: frozenset[str] = frozenset()
        """Peers with an open connection, in the run or not."""
        self.in_run: frozenset[str] = frozenset()
        """Connected peers that take part in the run."""
        self.observed: dict[str, tuple[str, ...]] = {}
        """Remote ends of each peer's connections, as this machine sees them."""
        self.alone_since: float | None = clock()
        self.returns = Returns()

    @property
    def bootstrap(self) -> dict[str, tuple[str, ...]]:
        """Current addresses of the bootstraps."""
        found = self.bootstraps.by_peer()
        found.pop(self._own_id, None)
        return found

    @property
    def relays(self) -> dict[str, tuple[str, ...]]:
        """Current relays for reservations, with their addresses."""
        return candidates(self._settings, self.bootstrap)

    def ban(self, peer_ids: Collection[str]) -> None:
        """Ban exactly these peers."""
        self.banned = frozenset(peer_ids) - {self._own_id}

    def update(self, connected: frozenset[str], members: Collection[str]) -> None:
        """Update the connected peers, and which of them take part in the run: those of `members`."""
        connected -= self.banned
        self.returns.update(self.connected, connected, time.monotonic())
        self.connected = connected
        self.in_run = connected.intersection(members) if self._run.manifest else connected
        if self.in_run:
            self.alone_since = None
        elif self.alone_since is None:
            self.alone_since = self._clock()

    def learn(self, records: list[tuple[PeerRecord, bytes]], reporter: str = "") -> None:
        """Store peer records. If there are too many, unconnected peers whose records expire first are dropped."""
        known = dict(self.known)
        for record, sealed in records:
            if record.peer_id not in known or known[record.peer_id][0].expires_at <= record.expires_at:
                known[record.peer_id] = (record, sealed)
        known.pop(self._own_id, None)
        # An attacker can sign any number of records with later expiry than honest ones, so connected peers come first.
        worth = {peer_id: (peer_id in self.connected, record.expires_at) for peer_id, (record, _) in known.items()}
        self.known = {peer_id: known[peer_id] for peer_id in sorted(known, key=worth.__getitem__)[-MAX_KNOWN_PEERS:]}
        self.reported_by = {peer_id: self.reported_by.get(peer_id, reporter) for peer_id in self.known}

    def read(self, sealed: bytes) -> PeerRecord | None:
        """The record of a member of this run, as it signed it; None for any other bytes, and once it has expired."""
        try:
            return self._open(sealed)
        except Refusal:
            return None

    def is_record_of(self, peer_id: str, sealed: bytes) -> bool:
        """Whether these bytes are this member's own record, as this node can read it.

        Raises `Refusal` for bytes that no honest peer sends as its own.
        """
        if self._run.manifest is None:
            return False
        try:
            self._open(sealed, peer_id)
        except Refusal as refusal:
            if refusal.reason in NEVER_OWN:
                raise
            return False
        return True

    def _open(self, sealed: bytes, signer: str | None = None) -> PeerRecord:
        assert self._run.manifest is not None
        return open_peer_record(sealed, self._run.manifest.run_id, signer, now=self._clock())

    def fresh(self) -> list[bytes]:
        """Signed records to pass on: connected peers first, then by latest expiry."""
        now = self._clock()
        fresh = [entry for entry in self.known.values() if entry[0].expires_at > now]
        fresh.sort(key=lambda entry: (entry[0].peer_id in self.connected, entry[0].expires_at), reverse=True)
        return [sealed for record, sealed in fresh if record.peer_id not in self.banned]

    def pulling(self) -> frozenset[str]:
        """Known peers that fetch groups on offer."""
        return frozenset(peer_id for peer_id, (record, _) in self.known.items() if record.pulls)

    def remember(self) -> None:
        """Write the addresses of the run's peers to the file of the settings, if one is set."""
        for peer_id in self.in_run:
            entry = self.known.get(peer_id)
            if entry is not None and entry[0].multiaddrs:
                self.remembered.pop(peer_id, None)
                # A record may contain other peers' addresses; those are not stored.
                suffix = f"/p2p/{peer_id}"
                own = tuple(address.removesuffix(suffix) for address in entry[0].multiaddrs if address.endswith(suffix))
                if own and all(address.isprintable() for address in own):
                    self.remembered[peer_id] = own
        self.remembered = dict(list(self.remembered.items())[-MAX_REMEMBERED_PEERS:])
        if self._settings.remember is None or not self.remembered:
            return
        addresses = [f"{address}/p2p/{peer_id}" for peer_id, group in self.remembered.items() for address in group]
        try:
            write_addresses(self._settings.remember, addresses, "known peers, the most recent last")
        except OSError as error:
            self._counters.add("remember_failures")
            logger.warning("cannot write the known peers to %s: %s", self._settings.remember, error)


def _remembered(path: Path | None) -> dict[str, tuple[str, ...]]:
    if path is None:
        return {}
    try:
        return by_peer(read_addresses(path))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"the file of known peers {path} cannot be read: {error.strerror or error}") from error


class CurrentRun:
    """The run of the newest adopted manifest; none at first. Any thread may adopt and read."""

    def __init__(self, run_id: str | None, run: SealedManifest | None) -> None:
        """`run_id`: join this run only; None: any run. Raises `Refusal` if `run` is another."""
        if run is not None and run_id not in (None, run.manifest.run_id):
            raise Refusal(Reason.WRONG_RUN, f"expected the run {run_id!r}, got {run.manifest.run_id!r}")
        self.sealed = run.sealed if run is not None else None
        self.manifest = run.manifest if run is not None else None
        self.since = time.monotonic()
        """When this node entered the run."""
        self._wanted = run_id
        self._adopting = threading.Lock()

    def adopt(self, sealed: bytes, *, now: float | None = None) -> None:
        """Adopt a manifest. Raises `Refusal` if it is invalid, outdated or of another run."""
        with self._adopting:
            expected = self.manifest.run_id if self.manifest else self._wanted
            manifest = open_manifest(sealed, expected, now=now)
            if self.manifest is not None and is_outdated(manifest, self.manifest, now=now):
                raise Refusal(
                    Reason.STALE, f"created at {manifest.created_at}, before the known one ({self.manifest.created_at})"
                )
            if self.manifest is None:
                self.since = time.monotonic()
            self.sealed, self.manifest = sealed, manifest
