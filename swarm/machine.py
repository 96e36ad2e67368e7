"""What this process may use: cores, and free memory within the limits of its control groups; and what it gives back."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import psutil

GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files of version 2 and 1: limit, use, and the field of `memory.stat` with what of it the kernel can take back."""


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_bytes(groups: Path = GROUPS, own_groups: Path = OWN_GROUPS) -> int:
    """Bytes for new tensors on the CPU. A container's limit counts as well as the machine's memory."""
    free = int(psutil.virtual_memory().available)
    return max(0, min([free, *(_left(folder) for folder in _folders(groups, own_groups))]))


def _folders(groups: Path, own_groups: Path) -> Iterator[Path]:
    """The memory control groups of this process, from its own to the outermost that can be seen."""
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = groups / "memory" if controllers else groups
        own = root / path.lstrip("/")
        yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(root))


def _left(folder: Path) -> int:
    """Bytes below the group's limit; a huge number without one."""
    for limit, used, reclaimable in FILES:
        try:
            most = (folder / limit).read_text().strip()
            if most == "max":
                continue  # the kernel takes long to write the other files
            now = int((folder / used).read_text())
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        return int(most) - now + int(statistics.get(reclaimable, 0))
    return 2**63


def return_free_memory() -> None:
    """Return what the C library holds of freed memory to the system; does nothing with another library than glibc."""
    if (trim := _malloc_trim()) is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
