"""How a node reaches the swarm."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from swarm.net.snapshots.config import SnapshotSettings
from swarm.net.trust.accounts import SafetySettings
from swarm.settings import Settings


class NetworkSettings(Settings):
    """Addresses, identity and limits of the network side."""

    transport: Literal["hivemind", "libp2p"] = "hivemind"
    """`hivemind`: the go daemon that it ships; `libp2p`: py-libp2p, where that daemon does not run. Both speak with
    each other."""
    bootstrap: tuple[str, ...] = ()
    """Any members of the run; they are tried in turn, for ever. Each entry is a multiaddr ending in `/p2p/PEER_ID`
    (`/dns4/HOST/tcp/PORT/...` too), `/dnsaddr/NAME` (multiaddrs in TXT records `dnsaddr=...` of `_dnsaddr.NAME`, looked
    up again when dialling fails; with `/p2p/PEER_ID` that peer only), `file:PATH` (one multiaddr a line, `#` comments,
    read again when it changes), `env:NAME` (multiaddrs separated by commas or spaces), or
    `hosts:HOST:PORT/p2p/PEER_ID,...` (looked up at every dial)."""
    run_id: str | None = None
    """Take part in this run only; without it, in the one that the first peer reached names."""
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """Multiaddrs to listen on; port 0 takes a free one."""
    announce: tuple[str, ...] = ()
    """Multiaddrs to tell others, when they differ from the ones listened on."""
    identity: Path | None = None
    """Ed25519 key file, made on first use with mode 0600; default `OUT/identity.key`."""
    remember: Path | None = None
    """File of peers met, for a restart at which no bootstrap lives; default of a peer `OUT/peers.known`."""
    nat_port_map: bool = True
    """Ask the router for a port through UPnP."""
    relay: Literal["auto", "always", "off"] = "auto"
    """Hold places at relays: `auto` at those outside the local net unless `announce` is set, `always`, or `off`."""
    trusted_relays: tuple[str, ...] = ()
    """Multiaddrs of relays to reserve a place at, each ending in `/p2p/PEER_ID`; without any, the bootstraps."""
    serve_relay: bool = False
    """Carry other nodes' connections, and tell them whether they are behind NAT; needs a public address."""
    relay_reservations: int = Field(256, ge=1)
    """Nodes that may be reachable through this relay at a time."""
    relay_circuits_per_peer: int = Field(64, ge=1)
    """Connections that this relay carries for one node at a time."""
    relay_circuit_bytes: int = Field(4 * 2**30, ge=2**17)
    """Bytes each way after which this relay ends a connection that it carries; the nodes then dial again."""
    relay_circuit_s: int = Field(1_800, ge=60)
    """Seconds after which it does."""
    max_record_bytes: int = Field(1_000_000, ge=1_000, le=64 * 2**20)
    """Largest signed group, compressed; above 1 000 000 it is announced by gossip and fetched from its holders."""
    download_bytes_per_s: int | None = Field(16 * 2**20, ge=2**18)
    """Fastest that large groups are fetched, all together, so that they leave room for gossip; null: no limit."""
    upload_bytes_per_s: int | None = Field(16 * 2**20, ge=2**18)
    """Fastest that others are given what they ask this node for, all together: large groups, and what they missed;
    null: no limit. It is what goes over the link, with the 6% that headers and encryption add. A peer that gives one
    asker less than 256 KiB/s is left for another."""
    max_completion_chars: int = Field(65_536, ge=16)
    inbox_records: int = Field(1_024, ge=1)
    inbox_bytes: int = Field(64 * 2**20, ge=1_000)
    """Received records waiting for the round, bounded both ways; the oldest is dropped and counted."""
    safety: SafetySettings = SafetySettings()
    snapshots: SnapshotSettings = SnapshotSettings()
    shelf_records: int = Field(8_192, ge=1)
    shelf_bytes: int = Field(128 * 2**20, ge=1_000)
    """Recent records kept for others who missed them, bounded both ways and by `backfill_s`."""
    backfill_s: float = Field(120.0, gt=0)
    """How old a record may be that a peer who comes late, or comes back, still gets."""
    repair_every_s: float = Field(5.0, gt=0)
    """How often one random peer is asked for what gossip has lost."""
    announce_every_s: float = Field(60.0, gt=0)
    """How often this peer's record in the DHT is renewed and others' are read."""
    daemon_processors: int = Field(2, ge=1)
    """Processors that the network daemon uses at a time; what connects hundreds of nodes may want more. A relay's uses
    one."""
    daemon_bytes: int = Field(2**30, ge=2**27)
    """Memory at which the network daemon is started anew: strangers can open streams on it without end. From half of it
    on it looks harder for what it can give back."""
    retry_s: float = Field(5.0, gt=0)
    """First pause before an unreachable bootstrap is tried again; doubles up to a minute."""

    @model_validator(mode="after")
    def _one_record_fits(self) -> Self:
        for name, room in (("inbox_bytes", self.inbox_bytes), ("shelf_bytes", self.shelf_bytes)):
            if room < self.max_record_bytes:
                raise ValueError(f"{name} must be at least max_record_bytes ({self.max_record_bytes}), got {room}")
        return self

    @model_validator(mode="after")
    def _a_relay_is_public(self) -> Self:
        if self.serve_relay and self.relay == "always":
            raise ValueError("a relay must be public: set serve_relay, or relay to 'always', not both")
        return self
