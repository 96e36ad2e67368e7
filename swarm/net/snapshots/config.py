"""Settings for the distribution of a learner's snapshots."""

from __future__ import annotations

from pydantic import Field

from swarm.net.direct.tickets import LEAST_PORT
from swarm.net.records.wire import MAX_SNAPSHOT_CHUNK_BYTES, MIN_SNAPSHOT_CHUNK_BYTES
from swarm.settings import Settings


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
    """Give and take chunks over TLS sockets of their own, some times as fast as the network's streams, between nodes
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
