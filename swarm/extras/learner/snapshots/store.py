"""Snapshots on disk, complete or in progress, and their chunks and deltas.

    FOLDER/VERSION/manifest    as the learner signed it
    FOLDER/VERSION/whole       verified chunks from the first one on
    FOLDER/VERSION/change      the same for the delta, if it was fetched or is passed on
    FOLDER/packed-*            a snapshot that its learner is writing; it becomes a version's `whole`

Of older versions only the deltas are kept, as long as they take fewer bytes than the whole: with them a node whose
download was overtaken catches up.

Chunks arrive in order, so a file's length gives its progress. After any restart every chunk is verified again; those
from the first bad one on are fetched again.

Deltas are lossless. A step of reinforcement learning changes most weights by less than their precision, so the
exclusive or of two snapshots is mostly zeros, above all in the high bytes. It compresses well after it is sorted into
planes of equal significance.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import zstandard
from blake3 import blake3

from swarm.errors import CorruptChunk, Refusal, SnapshotError
from swarm.files import RandomAccessFile, replace_file
from swarm.net.records.stores import record_id
from swarm.net.records.wire import MAX_SNAPSHOT_CHUNK_BYTES, MAX_SNAPSHOT_CHUNKS, MIN_SNAPSHOT_CHUNK_BYTES
from swarm.types import ChunkList, SnapshotManifest

logger = logging.getLogger(__name__)

PartName = Literal["whole", "change"]
MANIFEST = "manifest"
WHOLE, CHANGE = "whole", "change"
MAX_DELTAS = 16
"""Versions of which only the delta is kept; each has two open files."""
NUM_CHUNKS = 256
"""Chunks per snapshot. Each hop delays by one chunk: this many keep that short, and more add overhead."""
LEVEL = 3
PLANES = 4
"""Bytes of a float32; two consecutive bfloat16 are sorted equally well."""
BLOCK_BYTES = 2**24
"""Bytes in memory at a time; a multiple of `PLANES`."""
FRAME_HEADER_BYTES = 18
"""Longest header of zstandard."""


class Part:
    """One file of chunks. One thread adds, any thread may read."""

    def __init__(self, path: Path, chunks: ChunkList) -> None:
        """The file at `path`, created if missing; no chunk counts as held before `verify`. Raises `OSError`."""
        self.chunks = chunks
        self.num_held = 0
        """Verified chunks, from the first one on."""
        # A reader may still use the file after its version is removed.
        self.file = RandomAccessFile(path)
        self._hash = blake3()
        self._digest: bytes | None = None
        """Digest of an adopted file; otherwise `_hash` has it."""

    @property
    def complete(self) -> bool:
        """Whether all chunks are held."""
        return self.num_held == len(self.chunks.chunk_ids)

    @property
    def num_bytes_held(self) -> int:
        """Bytes of the held chunks."""
        return min(self.num_held * self.chunks.chunk_bytes, self.chunks.num_bytes)

    def verify(self) -> None:
        """Count the chunks of an earlier process, up to the first missing or bad one."""
        while not self.complete:
            chunk = self._read(self.num_held)
            if record_id(chunk) != self.chunks.chunk_ids[self.num_held]:
                return
            self._hash.update(chunk)
            self.num_held += 1

    def add(self, chunk: bytes | memoryview) -> None:
        """Store the next chunk. Raises `CorruptChunk` for any other, `OSError` if it cannot be written."""
        if record_id(chunk) != self.chunks.chunk_ids[self.num_held]:
            raise CorruptChunk(f"chunk {self.num_held} does not match its signed digest")
        self.file.write(self.num_held * self.chunks.chunk_bytes, chunk)
        self._hash.update(chunk)
        self.num_held += 1

    def adopt(self, file: RandomAccessFile, digest: bytes | None = None) -> None:
        """Move the file here that the chunks were cut from; neither they nor its digest are computed again.

        Raises `OSError`.
        """
        file.move(self.file.path)
        self.file, self._digest = file, digest
        self.num_held = len(self.chunks.chunk_ids)

    def read(self, index: int) -> bytes:
        """A held chunk. Raises `LookupError` if it cannot be read in full."""
        chunk = self._read(index)
        if len(chunk) != self.chunks.size(index):
            raise LookupError(f"chunk {index} cannot be read")
        return chunk

    def _read(self, index: int) -> bytes:
        return self.file.read(index * self.chunks.chunk_bytes, self.chunks.size(index))

    def has(self, digest: bytes) -> bool:
        """Whether the held bytes have this digest."""
        return (self._digest or self._hash.digest()) == digest


class Stored:
    """The stored parts of one version."""

    def __init__(self, folder: Path, sealed: bytes, manifest: SnapshotManifest) -> None:
        """The version's files, created if missing. Raises `OSError`."""
        self.sealed = sealed
        self.manifest = manifest
        self._folder = folder
        self.whole = Part(folder / WHOLE, manifest.whole)
        self.change = Part(folder / CHANGE, manifest.change) if manifest.change else None
        self.taking: PartName = "whole"
        """The part that is being fetched while the version is incomplete."""

    @property
    def complete(self) -> bool:
        """Whether the whole is held and has the signed digest."""
        return self.whole.complete and self.whole.has(self.manifest.digest)

    @property
    def fraction(self) -> float:
        """Progress in [0, 1]."""
        part = self.part(self.taking)
        return 1.0 if self.complete else part.num_held / len(part.chunks.chunk_ids) if part else 0.0

    def part(self, name: PartName) -> Part | None:
        """One of the two parts; None for a missing delta."""
        return self.whole if name == "whole" else self.change

    def drop_whole(self) -> None:
        """Keep the delta only; current readers of the whole can finish. Raises `OSError`."""
        self.taking = "change"
        if self.whole.num_held:
            (self._folder / WHOLE).unlink(missing_ok=True)
            self.whole = Part(self._folder / WHOLE, self.manifest.whole)

    def verify(self) -> None:
        """Verify the chunks of an earlier process."""
        self.whole.verify()
        if self.change is not None:
            self.change.verify()


class SnapshotStore:
    """The versions in one folder. Thread-safe."""

    def __init__(self, folder: Path, keep: int) -> None:
        """`keep`: number of complete snapshots to keep."""
        self._folder = folder
        self._keep = keep
        self._lock = threading.Lock()
        self._stored: dict[int, Stored] = {}

    def load(self, open_manifest: Callable[[bytes], SnapshotManifest]) -> None:
        """Load what earlier processes stored, still to be verified; folders without a valid signature are removed.

        Raises `SnapshotError` if the folder cannot be used.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for folder in sorted(self._folder.iterdir()):
                self._load_one(folder, open_manifest)
        except OSError as error:
            raise SnapshotError(f"snapshots cannot be stored in {self._folder}: {error.strerror or error}") from error

    def _load_one(self, folder: Path, open_manifest: Callable[[bytes], SnapshotManifest]) -> None:
        if not folder.is_dir():  # packed by a process that was killed before it was stored
            folder.unlink(missing_ok=True)
            return
        try:
            sealed = (folder / MANIFEST).read_bytes()
            manifest = open_manifest(sealed)
        except (FileNotFoundError, Refusal) as error:
            logger.warning("removing %s, which is not a snapshot of this run: %s", folder, error)
            shutil.rmtree(folder, ignore_errors=True)
            return
        self._stored[manifest.version] = Stored(folder, sealed, manifest)

    def begin(self, sealed: bytes, manifest: SnapshotManifest) -> Stored:
        """The stored version with this manifest, created if missing. Raises `OSError`."""
        if (known := self.get(manifest.version)) is not None:
            return known
        folder = self._path(manifest.version)
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / MANIFEST, sealed)
        stored = Stored(folder, sealed, manifest)
        with self._lock:
            self._stored[manifest.version] = stored
        return stored

    def get(self, version: int) -> Stored | None:
        """A stored version; None if there is none."""
        with self._lock:
            return self._stored.get(version)

    def versions(self) -> list[int]:
        """Stored versions, oldest first."""
        with self._lock:
            return sorted(self._stored)

    def newest_complete(self) -> Stored | None:
        """The newest complete version."""
        complete = self._complete()
        return complete[-1] if complete else None

    def remove(self, version: int) -> None:
        """Remove a version; current readers can finish."""
        with self._lock:
            self._stored.pop(version, None)
        shutil.rmtree(self._path(version), ignore_errors=True)

    def drop_unfinished(self, wanted: int) -> bool:
        """Remove the versions above the newest complete one, except `wanted`; whether there were any."""
        complete = self._complete()
        newest = complete[-1].manifest.version if complete else -1
        dropped = [version for version in self.versions() if version > newest and version != wanted]
        for version in dropped:
            self.remove(version)
        return bool(dropped)

    def collect(self) -> None:
        """Below the newest complete version, keep the newest complete ones and the latest deltas.

        Raises `OSError`.
        """
        complete = self._complete()
        self._keep_only(complete[-self._keep :], self._deltas(complete[-1].manifest.version) if complete else [])

    def make_room(self) -> None:
        """Remove all versions below the newest complete one, for a full disk."""
        self._keep_only(self._complete()[-1:], [])

    def _keep_only(self, kept: Sequence[Stored], deltas: Collection[Stored]) -> None:
        """Below the last of `kept`, keep these versions, and no more than the delta of `deltas`."""
        for stored in self._all():
            if not kept or stored.manifest.version >= kept[-1].manifest.version or stored in kept:
                continue
            if stored in deltas:
                stored.drop_whole()
            else:
                self.remove(stored.manifest.version)

    def _deltas(self, newest: int) -> list[Stored]:
        """The latest versions whose deltas lead to the newest in fewer bytes than it has."""
        deltas: list[Stored] = []
        num_bytes, stored = 0, self.get(newest)
        most = stored.manifest.whole.num_bytes if stored else 0
        while stored is not None and stored.change is not None and len(deltas) < MAX_DELTAS:
            num_bytes += stored.change.chunks.num_bytes
            if not stored.change.complete or num_bytes >= most:
                break
            deltas.append(stored)
            stored = self.get(stored.manifest.parent) if stored.manifest.parent is not None else None
        return deltas

    def _all(self) -> list[Stored]:
        return [stored for version in self.versions() if (stored := self.get(version))]

    def _complete(self) -> list[Stored]:
        return [stored for stored in self._all() if stored.complete]

    def _path(self, version: int) -> Path:
        return self._folder / str(version)


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


def cut(file: RandomAccessFile, chunk_bytes: int | None) -> tuple[ChunkList, bytes]:
    """The chunk list of a file, of default size for it, and its digest. Raises `SnapshotError` for no or too many
    bytes."""
    num_bytes = file.size
    size = check_size(num_bytes, chunk_bytes)
    ids, whole = [], blake3(max_threads=blake3.AUTO)
    for chunk in file.pieces(size):
        ids.append(record_id(chunk))
        whole.update(chunk)
    return ChunkList(num_bytes, size, tuple(ids)), whole.digest()


def describe(
    run_id: str,
    learner: str,
    version: int,
    snapshot: RandomAccessFile,
    parent: tuple[int, RandomAccessFile] | None,
    chunk_bytes: int | None,
) -> tuple[SnapshotManifest, RandomAccessFile | None]:
    """The manifest of a snapshot, and its delta from the parent (version, content) if that is smaller.

    Raises `SnapshotError` if the snapshot is empty or too large, `OSError` if the delta cannot be written.
    """
    whole, digest = cut(snapshot, chunk_bytes)
    change = delta(snapshot, parent[1]) if parent is not None else None
    if change is not None and change.size >= whole.num_bytes:
        change.path.unlink()
        change = None
    return SnapshotManifest(
        run_id=run_id,
        learner=learner,
        version=version,
        digest=digest,
        whole=whole,
        parent=parent[0] if parent is not None and change is not None else None,
        change=cut(change, chunk_bytes)[0] if change is not None else None,
    ), change


def delta(new: RandomAccessFile, parent: RandomAccessFile) -> RandomAccessFile | None:
    """The delta from `parent` to `new`, in a file beside `new`; None if their sizes differ, since nothing would be
    gained. Raises `OSError`."""
    num_bytes = new.size
    if num_bytes != parent.size:
        return None
    planes = RandomAccessFile.scratch(new.path.parent)
    num_rows = num_bytes // PLANES
    for start in range(0, num_bytes, BLOCK_BYTES):
        blocks = (np.frombuffer(file.read(start, BLOCK_BYTES), np.uint8) for file in (new, parent))
        changed = np.bitwise_xor(*blocks)
        even = len(changed) - len(changed) % PLANES
        for index, plane in enumerate(np.ascontiguousarray(changed[:even].reshape(-1, PLANES).T)):
            planes.write(index * num_rows + start // PLANES, plane.tobytes())
        planes.write(start + even, changed[even:].tobytes())  # the last row, if it is incomplete
    change = RandomAccessFile(delta_path(new), fresh=True)
    # In one call: a stream would have other bytes. Only the delta itself is in memory that cannot be reclaimed.
    change.write(0, zstandard.ZstdCompressor(LEVEL).compress(planes.mapped()))
    return change


def delta_path(new: RandomAccessFile) -> Path:
    """Where `delta` writes."""
    return new.path.with_name(f"{new.path.name}.{CHANGE}")


def apply_delta(
    change: RandomAccessFile, parent: RandomAccessFile, chunk_bytes: int, first: int = 0
) -> Iterator[bytes]:
    """The inverse of `delta`: the chunks of the new snapshot, from the one with index `first` on.

    Raises `SnapshotError` if the delta does not fit a parent of this size, `OSError` if its planes cannot be written.
    """
    num_bytes = parent.size
    planes = RandomAccessFile.scratch(change.path.parent)
    _decompress(change, planes, num_bytes)
    num_rows = num_bytes // PLANES
    for start in range(first * chunk_bytes, num_bytes, chunk_bytes):
        before = np.frombuffer(parent.read(start, chunk_bytes), np.uint8)
        begin, end = (min(row, num_rows) for row in (start // PLANES, -(-(start + len(before)) // PLANES)))
        columns = [planes.read(index * num_rows + begin, end - begin) for index in range(PLANES)]
        rows = np.stack([np.frombuffer(column, np.uint8) for column in columns], axis=1).reshape(-1)
        rest = np.frombuffer(planes.read(PLANES * num_rows, num_bytes % PLANES), np.uint8)
        offset = start - PLANES * begin
        yield np.bitwise_xor(np.concatenate([rows, rest])[offset : offset + len(before)], before).tobytes()


def _decompress(change: RandomAccessFile, planes: RandomAccessFile, num_bytes: int) -> None:
    """Write the `num_bytes` bytes of a delta. Raises `SnapshotError` if it has others, `OSError`."""
    written = 0
    try:
        if change.size == 0 or zstandard.frame_content_size(change.read(0, FRAME_HEADER_BYTES)) != num_bytes:
            raise SnapshotError(f"the delta is not for a parent of {num_bytes} bytes")
        with zstandard.ZstdDecompressor().stream_reader(change.mapped()) as reader:
            while written <= num_bytes and (block := reader.read(BLOCK_BYTES)):
                planes.write(written, block[: num_bytes - written])  # its frame may hold more than it says
                written += len(block)
    except zstandard.ZstdError as error:
        raise SnapshotError(f"the delta cannot be read: {error}") from error
    if written != num_bytes:
        raise SnapshotError(f"the delta cannot be read: it does not have the {num_bytes} bytes that it says")
