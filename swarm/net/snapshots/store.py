"""Snapshots on disk, complete or in progress, and their chunks and deltas.

    FOLDER/VERSION/manifest    as the learner signed it
    FOLDER/VERSION/whole       verified chunks from the first one on
    FOLDER/VERSION/change      the same for the delta, if it was fetched or is passed on

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
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Literal
from weakref import finalize

import numpy as np
import zstandard
from blake3 import blake3

from swarm.errors import CorruptChunk, Refusal, SnapshotError
from swarm.files import replace_file
from swarm.net.records.stores import record_id
from swarm.net.records.wire import MAX_SNAPSHOT_CHUNK_BYTES, MAX_SNAPSHOT_CHUNKS, MIN_SNAPSHOT_CHUNK_BYTES
from swarm.types import ChunkList, SnapshotManifest

logger = logging.getLogger(__name__)

PartName = Literal["whole", "change"]
MANIFEST = "manifest"
MAX_DELTAS = 16
"""Versions of which only the delta is kept; each has two open files."""
MAX_READ_BYTES = 2**30
"""Per read; the system returns at most twice that."""
NUM_CHUNKS = 256
"""Chunks per snapshot. Each hop delays by one chunk: this many keep that short, and more add overhead."""
LEVEL = 3
PLANES = 4
"""Bytes of a float32; two consecutive bfloat16 are sorted equally well."""


class Part:
    """One file of chunks. One thread adds, any thread may read."""

    def __init__(self, path: Path, chunks: ChunkList) -> None:
        """The file at `path`, created if missing; no chunk counts as held before `verify`. Raises `OSError`."""
        self.chunks = chunks
        self.num_held = 0
        """Verified chunks, from the first one on."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        # Closed with the last reference: a reader may still use the file after its version is removed.
        finalize(self, os.close, self._file)
        self._hash = blake3()
        self._digest: bytes | None = None
        """Digest of the whole content where it was given; otherwise `_hash` has it."""

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
        self._write(chunk)
        self._hash.update(chunk)
        self.num_held += 1

    def fill(self, content: bytes) -> None:
        """Store all missing chunks of the whole content. Raises as `add` does."""
        for chunk in self._missing(content):
            self.add(chunk)

    def put(self, content: bytes, digest: bytes) -> None:
        """Store the content that the chunks were cut from; neither they nor its digest are computed again.

        Raises `OSError`.
        """
        self._digest = digest
        for chunk in self._missing(content):
            self._write(chunk)
            self.num_held += 1

    def _missing(self, content: bytes) -> Iterator[memoryview]:
        """The chunk of `content` that comes next, each time, until all are held."""
        view, size = memoryview(content), self.chunks.chunk_bytes
        while not self.complete:
            yield view[self.num_held * size : (self.num_held + 1) * size]

    def _write(self, chunk: bytes | memoryview) -> None:
        """Write the chunk after those held. Raises `OSError`."""
        offset, rest = self.num_held * self.chunks.chunk_bytes, memoryview(chunk)
        while rest:
            written = os.pwrite(self._file, rest, offset)
            offset, rest = offset + written, rest[written:]

    def read(self, index: int) -> bytes:
        """A held chunk. Raises `LookupError` if it cannot be read in full."""
        chunk = self._read(index)
        if len(chunk) != self.chunks.size(index):
            raise LookupError(f"chunk {index} cannot be read")
        return chunk

    def _read(self, index: int) -> bytes:
        return os.pread(self._file, self.chunks.size(index), index * self.chunks.chunk_bytes)

    def content(self) -> bytes:
        """The bytes of all held chunks. Raises `OSError`."""
        pieces = []
        for start in range(0, self.num_bytes_held, MAX_READ_BYTES):
            pieces.append(os.pread(self._file, min(MAX_READ_BYTES, self.num_bytes_held - start), start))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

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
        self.whole = Part(folder / "whole", manifest.whole)
        self.change = Part(folder / "change", manifest.change) if manifest.change else None
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
            (self._folder / "whole").unlink(missing_ok=True)
            self.whole = Part(self._folder / "whole", self.manifest.whole)

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


def delta(new: bytes, parent: bytes) -> bytes | None:
    """The delta from `parent` to `new`; None if their sizes differ, since nothing would be gained."""
    if len(new) != len(parent):
        return None
    changed = np.bitwise_xor(np.frombuffer(new, np.uint8), np.frombuffer(parent, np.uint8))
    return zstandard.ZstdCompressor(LEVEL).compress(_to_planes(changed))


def apply_delta(change: bytes, parent: bytes) -> bytes:
    """The inverse of `delta`. Raises `SnapshotError` if the delta does not fit a parent of this size."""
    try:
        if zstandard.frame_content_size(change) != len(parent):
            raise SnapshotError(f"the delta is not for a parent of {len(parent)} bytes")
        planes = zstandard.ZstdDecompressor().decompress(change, max_output_size=len(parent))
    except zstandard.ZstdError as error:
        raise SnapshotError(f"the delta cannot be read: {error}") from error
    changed = _from_planes(np.frombuffer(planes, np.uint8))
    restored: bytes = np.bitwise_xor(changed, np.frombuffer(parent, np.uint8)).tobytes()
    return restored


def digest(snapshot: bytes) -> bytes:
    """32-byte digest of a snapshot."""
    return blake3(snapshot, max_threads=blake3.AUTO).digest()


def _to_planes(content: np.ndarray) -> bytes:
    """Group every fourth byte, for each of four offsets; the remainder of an incomplete row comes last."""
    even = len(content) - len(content) % PLANES
    planes = np.ascontiguousarray(content[:even].reshape(-1, PLANES).T)
    return planes.tobytes() + content[even:].tobytes()


def _from_planes(planes: np.ndarray) -> np.ndarray:
    even = len(planes) - len(planes) % PLANES
    return np.concatenate([planes[:even].reshape(PLANES, -1).T.reshape(-1), planes[even:]])
