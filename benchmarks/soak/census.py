"""What a node occupies, by process, and whether it grows."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.common.children import Child

MEMORY, DESCRIPTORS, THREADS, DISK, TEMPORARY = "memory", "descriptors", "threads", "disk", "temporary files"
UNITS = {MEMORY: "MiB", DISK: "MiB"}
"""Of what is not a number of things."""
PARTS = {"p2pd": "daemon", "directory_process": "directory", "verification.worker": "verifier"}
"""What a node's descendants are, by a part of their command."""

Sample = dict[str, float]
"""By quantity: MiB for memory and disk, else a number."""


def census(child: Child, out: Path, temporary: Path) -> Sample:
    """What a node occupies now. Memory is resident, shared pages divided among their processes where that is known."""
    found: defaultdict[str, float] = defaultdict(float)
    for process in child.tree():
        with suppress(psutil.Error, OSError):
            info = process.memory_full_info()._asdict()
            part = _part(process) if process.pid != child.process.pid else "node"
            found[f"{MEMORY}, {part}"] += (info.get("pss") or info["rss"]) / 2**20
            found[DESCRIPTORS] += process.num_fds()
            found[THREADS] += process.num_threads()
    found[MEMORY] = sum(value for name, value in found.items() if name.startswith(f"{MEMORY}, "))
    found[DISK] = sum(map(_size, out.rglob("*"))) / 2**20
    found[TEMPORARY] = sum(1 for _ in temporary.rglob("*"))
    return dict(found)


def growth(values: Sequence[float]) -> float | None:
    """The last third over the middle third, medians, minus 1; None for fewer than six samples."""
    third = len(values) // 3
    if third < 2:
        return None
    middle, last = statistics.median(values[third : 2 * third]), statistics.median(values[-third:])
    return last / middle - 1 if middle else float(last > 0)


def _part(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    return next((part for word, part in PARTS.items() if word in command), "other")


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size if path.is_file() else 0
    return 0
