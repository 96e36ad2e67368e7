"""Snapshots between bytes and files."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from torch import Tensor

from swarm.extras.learner.packing import Precision, SnapshotWeights, pack
from swarm.extras.learner.protocols import SnapshotFeed
from swarm.extras.learner.snapshots.publish import Publisher
from swarm.extras.learner.snapshots.store import apply_delta, delta
from swarm.extras.learner.updater import StreamedUpdater
from swarm.files import RandomAccessFile

_numbers = count()


def held(content: bytes, folder: Path | None = None) -> RandomAccessFile:
    """A file with this content; without a `folder` it is deleted already."""
    if folder is None:
        file = RandomAccessFile.scratch(Path(tempfile.gettempdir()))
    else:
        folder.mkdir(parents=True, exist_ok=True)
        file = RandomAccessFile(folder / f"held-{next(_numbers)}", fresh=True)
    file.write(0, content)
    return file


def content_of(file: RandomAccessFile) -> bytes:
    return file.read(0, file.size)


def packed(weights: Mapping[str, Tensor], precision: Precision = "native") -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot"
        pack(path, weights, weights.items(), precision)
        return path.read_bytes()


def unpacked(content: bytes) -> dict[str, Tensor]:
    return dict(SnapshotWeights(held(content)))


def newest(feed: SnapshotFeed) -> tuple[int, bytes] | None:
    found = feed.newest()
    return found and (found[0], content_of(found[1]))


class BytesPublisher(Publisher):
    """Publishes bytes."""

    def publish(self, version: int, content: bytes) -> None:  # type: ignore[override]
        super().publish(version, held(content, self._serving.store._folder))


def packed_by(updater: StreamedUpdater) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        updater.snapshot(path := Path(folder) / "snapshot")
        return path.read_bytes()


def delta_of(new: bytes, parent: bytes) -> bytes | None:
    with tempfile.TemporaryDirectory() as folder:
        change = delta(held(new, Path(folder)), held(parent))
        return content_of(change) if change is not None else None


def applied(change: bytes, parent: bytes, chunk_bytes: int = 4_096) -> bytes:
    return b"".join(apply_delta(held(change), held(parent), chunk_bytes))
