"""How a node reaches the swarm."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from swarm.settings import Settings


class NetworkSettings(Settings):
    """Addresses, identity and limits of the network side."""

    transport: Literal["hivemind", "libp2p"] = "hivemind"
    """`hivemind`: the go daemon that it ships; `libp2p`: py-libp2p, where that daemon does not run. Both speak with
    each other."""
    bootstrap: tuple[str, ...] = ()
    """Multiaddrs of any members of the run, each ending in `/p2p/PEER_ID`; they are tried in turn, for ever."""
    run_id: str | None = None
    """Take part in this run only; without it, in the one that the first peer reached names."""
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """Multiaddrs to listen on; port 0 takes a free one."""
    announce: tuple[str, ...] = ()
    """Multiaddrs to tell others, when they differ from the ones listened on."""
    identity: Path | None = None
    """Ed25519 key file, made on first use with mode 0600; default `OUT/identity.key`."""
    nat_port_map: bool = True
    """Ask the router for a port through UPnP."""
    max_record_bytes: int = Field(1_000_000, ge=1_000, le=1_000_000)
    """Largest signed group, compressed."""
    max_completion_chars: int = Field(65_536, ge=16)
    inbox_records: int = Field(1_024, ge=1)
    inbox_bytes: int = Field(64 * 2**20, ge=1_000)
    """Received records waiting for the round, bounded both ways; the oldest is dropped and counted."""
    announce_every_s: float = Field(20.0, gt=0)
    """How often this peer's record in the DHT is renewed and others' are read."""
    retry_s: float = Field(5.0, gt=0)
    """First pause before an unreachable bootstrap is tried again; doubles up to a minute."""
