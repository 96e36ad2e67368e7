"""A snapshot as its learner signs it: split into chunks, whole and as a delta from the previous one."""

from __future__ import annotations

from swarm.errors import SnapshotError
from swarm.net.records.record_store import record_id
from swarm.net.records.wire import MAX_SNAPSHOT_CHUNK_BYTES, MAX_SNAPSHOT_CHUNKS, MIN_SNAPSHOT_CHUNK_BYTES
from swarm.net.snapshots.delta import delta, digest
from swarm.types import ChunkList, SnapshotManifest

NUM_CHUNKS = 256
"""Chunks per snapshot. Each hop delays by one chunk: this many keep that short, and more add overhead."""


def chunk_bytes_for(num_bytes: int) -> int:
    """Chunk size for a snapshot of this size."""
    return min(max(-(-num_bytes // NUM_CHUNKS), MIN_SNAPSHOT_CHUNK_BYTES), MAX_SNAPSHOT_CHUNK_BYTES)


def check_size(num_bytes: int, chunk_bytes: int | None) -> int:
    """The size of the chunks of a snapshot with `num_bytes`. Raises `SnapshotError` for none or too many bytes."""
    size = chunk_bytes or chunk_bytes_for(num_bytes)
    if num_bytes == 0:
        raise SnapshotError("a snapshot must have at least 1 byte, got none")
    if num_bytes > size * MAX_SNAPSHOT_CHUNKS:
        fits = num_bytes <= MAX_SNAPSHOT_CHUNK_BYTES * MAX_SNAPSHOT_CHUNKS
        advice = "a larger network.snapshots.chunk_bytes allows more" if fits else "no chunk_bytes allows as much"
        raise SnapshotError(f"a snapshot must have 1 to {size * MAX_SNAPSHOT_CHUNKS} bytes, got {num_bytes}; {advice}")
    return size


def cut(content: bytes, chunk_bytes: int | None) -> ChunkList:
    """The chunk list of `content`; the default chunk size fits it. Raises `SnapshotError` for none or too many."""
    size = check_size(len(content), chunk_bytes)
    view = memoryview(content)
    ids = tuple(record_id(view[start : start + size]) for start in range(0, len(content), size))
    return ChunkList(len(content), size, ids)


def describe(
    run_id: str, learner: str, version: int, snapshot: bytes, parent: tuple[int, bytes] | None, chunk_bytes: int | None
) -> tuple[SnapshotManifest, bytes | None]:
    """The manifest of a snapshot, and its delta from the parent (version, bytes) if that is smaller.

    Raises `SnapshotError` if the snapshot is empty or too large.
    """
    change = delta(snapshot, parent[1]) if parent is not None else None
    if change is not None and len(change) >= len(snapshot):
        change = None
    return SnapshotManifest(
        run_id=run_id,
        learner=learner,
        version=version,
        digest=digest(snapshot),
        whole=cut(snapshot, chunk_bytes),
        parent=parent[0] if parent is not None and change is not None else None,
        change=cut(change, chunk_bytes) if change is not None else None,
    ), change
