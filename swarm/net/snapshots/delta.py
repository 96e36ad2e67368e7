"""Lossless delta between two snapshots.

A step of reinforcement learning changes most weights by less than their precision, so the exclusive or of two snapshots
is mostly zeros, above all in the high bytes. It compresses well after it is sorted into planes of equal significance.
"""

from __future__ import annotations

import numpy as np
import zstandard
from blake3 import blake3

from swarm.errors import SnapshotError

LEVEL = 3
PLANES = 4
"""Bytes of a float32; two consecutive bfloat16 are sorted equally well."""


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
