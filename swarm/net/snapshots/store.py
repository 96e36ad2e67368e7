"""Snapshots on disk, whole or on their way.

    FOLDER/VERSION/manifest    as the learner signed it
    FOLDER/VERSION/whole       chunks up to where it has come; each was verified before it was written
    FOLDER/VERSION/change      the same of the delta, where it came as one or is handed on

Chunks arrive in order, so that a file's length says how far it has come. After a restart, however the process ended,
every chunk is verified again and those from the first bad one on are fetched anew.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal
from weakref import finalize

from blake3 import blake3

from swarm.errors import CorruptChunk, Refusal, SnapshotError
from swarm.net.records.shelf import record_id
from swarm.types import ChunkList, SnapshotManifest

logger = logging.getLogger(__name__)

PartName = Literal["whole", "change"]
MANIFEST = "manifest"
MAX_READ_BYTES = 2**30
"""At once; the system gives at most twice that."""


class Part:
    """One file of chunks. One thread adds, any may read."""

    def __init__(self, path: Path, chunks: ChunkList) -> None:
        """The file in `path`, made if need be; nothing of it counts as held before `verify`. Raises `OSError`."""
        self.chunks = chunks
        self.num_held = 0
        """Chunks from the first one on that are here and verified."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        # Whoever still reads when the version is removed holds it open.
        finalize(self, os.close, self._file)
        self._hash = blake3()

    @property
    def complete(self) -> bool:
        """Whether every chunk is here."""
        return self.num_held == len(self.chunks.chunk_ids)

    @property
    def num_bytes_held(self) -> int:
        """Bytes of the chunks that are here."""
        return min(self.num_held * self.chunks.chunk_bytes, self.chunks.num_bytes)

    def verify(self) -> None:
        """Count what an earlier process left, up to the first chunk that is missing or not what it should be."""
        while not self.complete:
            chunk = self._read(self.num_held)
            if record_id(chunk) != self.chunks.chunk_ids[self.num_held]:
                return
            self._hash.update(chunk)
            self.num_held += 1

    def add(self, chunk: bytes | memoryview) -> None:
        """Take the next chunk in. Raises `CorruptChunk` for any other, `OSError` when it cannot be written."""
        if record_id(chunk) != self.chunks.chunk_ids[self.num_held]:
            raise CorruptChunk(f"chunk {self.num_held} is not the one that was signed for")
        offset, rest = self.num_held * self.chunks.chunk_bytes, memoryview(chunk)
        while rest:
            written = os.pwrite(self._file, rest, offset)
            offset, rest = offset + written, rest[written:]
        self._hash.update(chunk)
        self.num_held += 1

    def fill(self, content: bytes) -> None:
        """Take everything that is missing from the whole content. Raises as `add` does."""
        view, size = memoryview(content), self.chunks.chunk_bytes
        while not self.complete:
            self.add(view[self.num_held * size : (self.num_held + 1) * size])

    def read(self, index: int) -> bytes:
        """A chunk that is held. Raises `LookupError` when the disk gives something else."""
        chunk = self._read(index)
        if len(chunk) != self.chunks.size(index):
            raise LookupError(f"chunk {index} cannot be read")
        return chunk

    def _read(self, index: int) -> bytes:
        return os.pread(self._file, self.chunks.size(index), index * self.chunks.chunk_bytes)

    def content(self) -> bytes:
        """All of it. Raises `OSError`."""
        pieces = []
        for start in range(0, self.num_bytes_held, MAX_READ_BYTES):
            pieces.append(os.pread(self._file, min(MAX_READ_BYTES, self.num_bytes_held - start), start))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def has(self, digest: bytes) -> bool:
        """Whether all that was added has this digest."""
        return self._hash.digest() == digest


class Stored:
    """What is here of one version."""

    def __init__(self, folder: Path, sealed: bytes, manifest: SnapshotManifest) -> None:
        """Its files, made if need be. Raises `OSError`."""
        self.sealed = sealed
        self.manifest = manifest
        self.whole = Part(folder / "whole", manifest.whole)
        self.change = Part(folder / "change", manifest.change) if manifest.change else None
        self.taking: PartName = "whole"
        """What is being fetched while it is not complete."""

    @property
    def complete(self) -> bool:
        """Whether the whole is here, and is what the learner signed for."""
        return self.whole.complete and self.whole.has(self.manifest.digest)

    @property
    def fraction(self) -> float:
        """How far it has come, from 0 to 1."""
        part = self.part(self.taking)
        return 1.0 if self.complete else part.num_held / len(part.chunks.chunk_ids) if part else 0.0

    def part(self, name: PartName) -> Part | None:
        """One of the files."""
        return self.whole if name == "whole" else self.change

    def verify(self) -> None:
        """See what an earlier process left."""
        self.whole.verify()
        if self.change is not None:
            self.change.verify()


class SnapshotStore:
    """The versions in one folder. Thread-safe."""

    def __init__(self, folder: Path, keep: int) -> None:
        """`keep`: complete snapshots to keep."""
        self._folder = folder
        self._keep = keep
        self._lock = threading.Lock()
        self._stored: dict[int, Stored] = {}

    def load(self, open_manifest: Callable[[bytes], SnapshotManifest]) -> None:
        """Find what earlier processes left, to be verified; what carries no good signature is removed.

        Raises `SnapshotError` when the folder cannot be used.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for folder in sorted(self._folder.iterdir()):
                self._load_one(folder, open_manifest)
        except OSError as error:
            raise SnapshotError(f"snapshots cannot be kept in {self._folder}: {error.strerror or error}") from error

    def _load_one(self, folder: Path, open_manifest: Callable[[bytes], SnapshotManifest]) -> None:
        try:
            sealed = (folder / MANIFEST).read_bytes()
            manifest = open_manifest(sealed)
        except (FileNotFoundError, Refusal) as error:
            logger.warning("removing %s, which is no snapshot of this run: %s", folder, error)
            shutil.rmtree(folder, ignore_errors=True)
            return
        self._stored[manifest.version] = Stored(folder, sealed, manifest)

    def begin(self, sealed: bytes, manifest: SnapshotManifest) -> Stored:
        """What is here of a version, from now on also this manifest. Raises `OSError`."""
        if (known := self.get(manifest.version)) is not None:
            return known
        folder = self._path(manifest.version)
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f"{MANIFEST}.partial"
        draft.write_bytes(sealed)
        draft.rename(folder / MANIFEST)
        stored = Stored(folder, sealed, manifest)
        with self._lock:
            self._stored[manifest.version] = stored
        return stored

    def get(self, version: int) -> Stored | None:
        """What is here of a version."""
        with self._lock:
            return self._stored.get(version)

    def versions(self) -> list[int]:
        """Versions of which there is something, oldest first."""
        with self._lock:
            return sorted(self._stored)

    def newest_complete(self) -> Stored | None:
        """The newest one that is all here."""
        complete = [stored for version in self.versions() if (stored := self.get(version)) and stored.complete]
        return complete[-1] if complete else None

    def remove(self, version: int) -> None:
        """Let go of a version; whoever reads it can finish."""
        with self._lock:
            self._stored.pop(version, None)
        shutil.rmtree(self._path(version), ignore_errors=True)

    def collect(self, keep: int | None = None) -> None:
        """Remove all that is older than the newest complete ones that are kept, and unfinished ones among them."""
        complete = [version for version in self.versions() if (stored := self.get(version)) and stored.complete]
        kept = complete[-(keep or self._keep) :]
        for version in self.versions():
            if kept and version < kept[-1] and version not in kept:
                self.remove(version)

    def _path(self, version: int) -> Path:
        return self._folder / str(version)
