"""Snapshots as a hostile learner may sign them."""

from __future__ import annotations

import json


def stated(tensors: dict[str, tuple[str, list[int], int]], header: bytes = b"") -> bytes:
    """A snapshot by its header: type, shape and bytes of each tensor, all bytes 1."""
    entries: dict[str, object] = {}
    end = 0
    for name, (dtype, shape, num_bytes) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + num_bytes]}
        end += num_bytes
    content = header or json.dumps(entries).encode()
    return len(content).to_bytes(8, "little") + content + b"\1" * end


MATRIX = {"w": ("I8", [2, 3], 6)}
HOSTILE = {
    "a scale of another shape": stated({**MATRIX, "w:scale": ("F32", [3, 1], 12)}),
    "an outer product": stated({"w": ("I8", [30_000, 1], 30_000), "w:scale": ("F32", [1, 30_000], 120_000)}),
    "the same of one dimension": stated({"w": ("I8", [30_000, 1], 30_000), "w:scale": ("F32", [30_000], 120_000)}),
    "a scale of more dimensions": stated({**MATRIX, "w:scale": ("F32", [2, 2, 1], 16)}),
    "a scale of another type": stated({**MATRIX, "w:scale": ("F64", [2, 1], 16)}),
    "a scale for a float": stated({"w": ("F32", [2, 3], 24), "w:scale": ("F32", [2, 1], 8)}),
    "a scale of a scale": stated({**MATRIX, "w:scale": ("I8", [2, 1], 2), "w:scale:scale": ("F32", [2, 1], 8)}),
    "a scale for nothing": stated({"x": ("F32", [1], 4), "w:scale": ("F32", [2, 1], 8)}),
    "a type without arithmetic": stated({"w": ("F8_E4M3", [2, 3], 6)}),
    "a type that does not exist": stated({"w": ("\x1b[31m" * 100, [2, 3], 6)}),
    "complex numbers": stated({"w": ("C64", [2, 3], 48)}),
    "another number of bytes": stated({"w": ("F32", [2, 3], 20)}),
    "a shape of 2^80": stated({"w": ("F32", [2**40, 2**40], 24)}),
    "a negative shape": stated({"w": ("F32", [-2, -3], 24)}),
    "a hundred dimensions": stated({"w": ("F32", [1] * 100, 4)}),
    "a nested header": stated({}, b"[" * 100_000),
    "a header that is a list": stated({}, b"[]"),
    "a header without a shape": stated({}, b'{"w": {"dtype": "F32"}}'),
    "a header longer than the snapshot": b"\xff" * 8 + b"{}",
    "nothing": b"",
}  # fmt: skip
