"""A snapshot as its difference from another that the receiver has.

A step of reinforcement learning moves weights by less than most of them can express: the exclusive or of two snapshots
is mostly zeros, above all in the high bytes. Sorted into planes of equal significance, it compresses well, and exactly.
"""

from __future__ import annotations

import numpy as np
import zstandard
from blake3 import blake3

from swarm.errors import SnapshotError

LEVEL = 3
PLANES = 4
"""Bytes of a float32; those of two bfloat16 in a row are sorted as well by it."""


def delta(new: bytes, parent: bytes) -> bytes | None:
    """What makes `new` of `parent`, exactly; None when their sizes differ: then there is nothing to gain."""
    if len(new) != len(parent):
        return None
    changed = np.bitwise_xor(np.frombuffer(new, np.uint8), np.frombuffer(parent, np.uint8))
    return zstandard.ZstdCompressor(LEVEL).compress(_to_planes(changed))


def apply_delta(change: bytes, parent: bytes) -> bytes:
    """The snapshot that `delta` was given. Raises `SnapshotError` when it was not made for this parent's size."""
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
    """What a snapshot is named by: 32 bytes."""
    return blake3(snapshot).digest()


def _to_planes(content: np.ndarray) -> bytes:
    """Every fourth byte together, from each of four starts; what does not fill a row comes last."""
    even = len(content) - len(content) % PLANES
    planes = np.ascontiguousarray(content[:even].reshape(-1, PLANES).T)
    return planes.tobytes() + content[even:].tobytes()


def _from_planes(planes: np.ndarray) -> np.ndarray:
    even = len(planes) - len(planes) % PLANES
    return np.concatenate([planes[:even].reshape(PLANES, -1).T.reshape(-1), planes[even:]])
