"""Settings of the network and of its snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from swarm.net.addresses.dial import address_problem
from swarm.net.records.wire import MAX_SNAPSHOT_CHUNK_BYTES, MIN_SNAPSHOT_CHUNK_BYTES
from swarm.net.trust.accounts import SafetySettings
from swarm.net.trust.sharing import OFFERS_PER_S
from swarm.settings import Settings

LEAST_PORT = 1_024
"""Ports below belong to the system's services; no peer is sent there."""


class SnapshotSettings(Settings):
    """Chunks and timeouts; `network.upload_bytes_per_s` and `download_bytes_per_s` limit the rates."""

    chunk_bytes: int | None = Field(None, ge=MIN_SNAPSHOT_CHUNK_BYTES, le=MAX_SNAPSHOT_CHUNK_BYTES)
    """Bytes per chunk; a relay passes on whole chunks only. Default: 1/256 of the snapshot, from 32 KiB to 4 MiB."""
    delta: bool = True
    """Also offer the lossless delta from the previous snapshot if it is smaller."""
    keep: int = Field(2, ge=1)
    """Whole snapshots kept on disk, for other nodes and for deltas; the latest deltas take at most as much as one
    more."""
    fan_out: int = Field(2, ge=1)
    """Nodes that one node feeds at a time when no `upload_bytes_per_s` determines the number."""
    direct: bool = True
    """Give and take chunks over separate TLS sockets, some times as fast as the network's streams, between nodes
    whose `upload_bytes_per_s` and `download_bytes_per_s` are null. A peer whose port cannot be reached is served by the
    network as ever."""
    direct_port: int | None = Field(None, ge=LEAST_PORT, le=65_535)
    """The port for this, to be opened in a firewall; null: any free one."""
    stall_s: float = Field(0.8, gt=0)
    """A relay that is silent for this time, or delivers less than half of its planned rate, is replaced by a better
    one."""
    poll_s: float = Field(5.0, gt=0)
    """How often a worker asks the learner, or else any peer, for announcements that it missed."""
    finish_behind: int = Field(2, ge=1)
    """A download is abandoned once this many newer snapshots are announced, but no two in a row; 1: as soon as there is
    a newer one."""


class NetworkSettings(Settings):
    """Addresses, identity and limits of the network."""

    transport: Literal["hivemind", "libp2p"] = "hivemind"
    """`hivemind`: its go daemon; `libp2p`: py-libp2p, for platforms without that daemon. The two are
    interoperable."""
    bootstrap: tuple[str, ...] = ()
    """Any members of the run; they are tried in turn, forever. Each entry is a multiaddr ending in `/p2p/PEER_ID`
    (`/dns4/HOST/tcp/PORT/...` too), `/dnsaddr/NAME` (multiaddrs in TXT records `dnsaddr=...` of `_dnsaddr.NAME`,
    resolved again when dialling fails; with `/p2p/PEER_ID` that peer only), `file:PATH` (one multiaddr per line, `#`
    comments, reread when it changes), `env:NAME` (multiaddrs separated by commas or spaces), or
    `hosts:HOST:PORT/p2p/PEER_ID,...` (resolved at every dial)."""
    run_id: str | None = None
    """Join this run only; by default, the run that the first reachable peer names."""
    list_at: tuple[str, ...] = ()
    """Bootstraps of other runs that list this node's run, where `swarm runs` finds it; entries as in `bootstrap`. They
    must reach this node, directly, and dial it before they do."""
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """Multiaddrs to listen on; port 0 selects a free one."""
    announce: tuple[str, ...] = ()
    """Multiaddrs to announce to others, if they differ from those listened on. Members of a public run publish only
    public ones."""
    address_file: Path | None = None
    """Also write this node's addresses to this file, the best first, for others' `file:PATH`."""
    identity: Path | None = None
    """Ed25519 key file, created on first use with mode 0600; default `OUT/identity.key`."""
    remember: Path | None = None
    """File of known peers, for a restart while no bootstrap is up; default for a peer: `OUT/peers.known`."""
    nat_port_map: bool = True
    """Ask the router for a port through UPnP."""
    relay: Literal["auto", "always", "off"] = "auto"
    """Reservations at relays: `auto`: at relays outside the local network unless `announce` is set; `always`; `off`."""
    trusted_relays: tuple[str, ...] = ()
    """Multiaddrs of relays for reservations, each ending in `/p2p/PEER_ID`; default: the bootstraps."""
    serve_relay: bool = False
    """Relay other nodes' connections, and tell them whether they are behind NAT; needs a public address."""
    relay_reservations: int = Field(256, ge=1)
    """Nodes that may hold a reservation at this relay at a time."""
    relay_circuits_per_peer: int = Field(64, ge=1)
    """Connections that this relay carries per node at a time."""
    relay_circuit_bytes: int = Field(4 * 2**30, ge=2**17)
    """Bytes in each direction after which this relay ends a connection; the nodes then dial again."""
    relay_circuit_s: int = Field(1_800, ge=60)
    """Seconds after which this relay ends a connection."""
    max_record_bytes: int = Field(1_000_000, ge=1_000, le=64 * 2**20)
    """Largest signed group, compressed; above 1 000 000 bytes, it is announced and peers fetch it from holders."""
    download_bytes_per_s: int | None = Field(16 * 2**20, ge=2**18)
    """Largest total rate of fetching large groups, to leave bandwidth for feeds; null: no limit."""
    upload_bytes_per_s: int | None = Field(16 * 2**20, ge=2**18)
    """Largest total rate of answers to other nodes: large groups, and records they missed; null: no limit. Measured on
    the link, with 6% overhead for headers and encryption. A source that sends less than 256 KiB/s to a peer is
    replaced."""
    offers_per_s: float = Field(OFFERS_PER_S, gt=0)
    """Largest rate of offers of all members together: the more members there are, the fewer of its groups each offers.
    32 take about 1.9 Mbit/s up and down."""
    max_completion_chars: int = Field(65_536, ge=16)
    inbox_records: int = Field(1_024, ge=1)
    inbox_bytes: int = Field(64 * 2**20, ge=1_000)
    """Received records queued for the round, bounded both ways; the oldest is dropped and counted."""
    safety: SafetySettings = SafetySettings()
    snapshots: SnapshotSettings = SnapshotSettings()
    shelf_records: int = Field(8_192, ge=1)
    shelf_bytes: int = Field(128 * 2**20, ge=1_000)
    """Recent records kept for peers that missed them, bounded both ways and by `backfill_s`."""
    backfill_s: float = Field(120.0, gt=0)
    """Largest age of records that a late or returning peer receives."""
    repair_every_s: float = Field(5.0, gt=0)
    """How often one random peer is asked for records that it missed."""
    announce_every_s: float = Field(60.0, gt=0, le=100.0)
    """How often this peer's record in the DHT is renewed and others' records are read. A record lives for at most 150
    s, and the pauses between renewals vary by 30%."""
    daemon_processors: int = Field(2, ge=1)
    """Processors that the network daemon uses at a time; a node with hundreds of connections may need more. A relay's
    daemon uses one."""
    daemon_bytes: int = Field(2**30, ge=2**27)
    """Memory at which the network daemon is restarted: untrusted peers can open any number of streams on it. From half
    of it on, the daemon collects garbage harder. With `libp2p`: unread bytes of all connections; beyond it, the
    one with most is closed."""
    retry_s: float = Field(5.0, gt=0)
    """First pause before an unreachable bootstrap is tried again; it doubles up to a minute."""

    @model_validator(mode="after")
    def _addresses_are_addresses(self) -> Self:
        for name, addresses, least_port in (("listen", self.listen, 0), ("announce", self.announce, 1)):
            for address in addresses:
                if problem := address_problem(address, least_port):
                    raise ValueError(f"an address in {name} {problem}, got {address!r}")
        return self

    @model_validator(mode="after")
    def _one_record_fits(self) -> Self:
        for name, room in (("inbox_bytes", self.inbox_bytes), ("shelf_bytes", self.shelf_bytes)):
            if room < self.max_record_bytes:
                raise ValueError(f"{name} must be at least max_record_bytes ({self.max_record_bytes}), got {room}")
        return self

    @model_validator(mode="after")
    def _a_relay_is_public(self) -> Self:
        if self.serve_relay and self.relay == "always":
            raise ValueError("a relay must be publicly reachable itself: set either serve_relay, or relay to 'always'")
        return self
