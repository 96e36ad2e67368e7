"""How a learner's snapshots travel."""

from __future__ import annotations

from pydantic import Field

from swarm.net.records.wire import MAX_SNAPSHOT_CHUNK_BYTES, MIN_SNAPSHOT_CHUNK_BYTES
from swarm.settings import Settings


class SnapshotSettings(Settings):
    """Chunks and patience; how fast they go is `network.upload_bytes_per_s` and `download_bytes_per_s`."""

    chunk_bytes: int | None = Field(None, ge=MIN_SNAPSHOT_CHUNK_BYTES, le=MAX_SNAPSHOT_CHUNK_BYTES)
    """A relay hands on whole chunks only; by default a 256th of the snapshot, from 32 KiB to 4 MiB."""
    delta: bool = True
    """Also offer the lossless difference from the snapshot before, when it is smaller."""
    keep: int = Field(2, ge=1)
    """Whole snapshots kept on disk, for others and for deltas."""
    fan_out: int = Field(2, ge=1)
    """Nodes that one feeds at a time where no `upload_bytes_per_s` says how many it can."""
    stall_s: float = Field(0.8, gt=0)
    """A relay that is silent for so long, or gives less than half of what it should, is left for a better one."""
    poll_s: float = Field(5.0, gt=0)
    """How often a worker asks the learner, or else any peer, for news that did not reach it."""
    finish_behind: int = Field(2, ge=1)
    """A snapshot on its way is given up once so many newer ones are announced; 1: as soon as there is a newer one."""
