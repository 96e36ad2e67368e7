"""What this process may use: cores, and free memory within the limits of its control groups; and what it gives back."""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

LOOK_EVERY_S = 10.0
"""Between looks for new child processes, which read the whole process table."""
GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files of version 2 and 1: limit, use, and the field of `memory.stat` with what of it the kernel can take back."""
QUOTA_FILES = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
"""Files of version 2 and 1: processor time in a period, and the period."""
SPARE_FROM = 4
"""Cores from which on one is left to verification and the network: the threads of a tensor operation wait for the
slowest of them, so that one which shares its core delays all."""
MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Options of glibc's `mallopt`: bytes from which on a block is mapped by itself, and free bytes at the end of the heap
from which on they are returned."""
KEPT_BLOCK, KEPT_HEAP = 2**25, 2**31 - 1
"""Their values: blocks of less than 32 MiB, and all of the heap. Larger blocks are still returned, because glibc until
2.37 does not reuse the room of an aligned block for one of the same size: kept, they took 15% more memory."""


def num_cores(groups: Path = GROUPS, own_groups: Path = OWN_GROUPS) -> int:
    """Cores that this process may use; of a container's processor time, a part of a core counts as one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *(math.ceil(_quota(folder)) for folder in _folders("cpu", groups, own_groups))]))


def threads_of_each(num_computing: int, most: int) -> int:
    """Threads of each of so many processes that compute at the same time; `most` are of use to one."""
    cores = num_cores()
    return -(-min(most, cores - (cores >= SPARE_FROM)) // num_computing)


def available_bytes(groups: Path = GROUPS, own_groups: Path = OWN_GROUPS) -> int:
    """Bytes for new tensors on the CPU. A container's limit counts as well as the machine's memory."""
    free = int(psutil.virtual_memory().available)
    return max(0, min([free, *(_left(folder) for folder in _folders("memory", groups, own_groups))]))


class ProcessorTime:
    """Processor seconds of this process and of those that it has started, whether they run or have ended."""

    def __init__(self) -> None:
        """Counts from the processes' start."""
        self._processes: dict[int, psutil.Process] = {}
        self._seconds: dict[int, float] = {}
        """The last known of each."""
        self._looked_at = -math.inf

    def seconds(self) -> float:
        """So far; a process that ends within `LOOK_EVERY_S` may be missed."""
        if time.monotonic() - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = time.monotonic()
            me = psutil.Process()
            self._processes = {process.pid: process for process in (me, *me.children(recursive=True))}
        for pid, process in self._processes.items():
            with suppress(psutil.Error):
                times = process.cpu_times()
                self._seconds[pid] = times.user + times.system
        return sum(self._seconds.values())


def _folders(controller: str, groups: Path, own_groups: Path) -> Iterator[Path]:
    """The control groups of this process, from its own to the outermost that can be seen."""
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = groups / controller if controllers else groups
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


def _quota(folder: Path) -> float:
    """Cores' worth of processor time that the group may use; a huge number without a limit."""
    for files in QUOTA_FILES:
        try:
            time, period = " ".join((folder / file).read_text() for file in files).split()
        except (OSError, ValueError):
            continue
        if time not in ("max", "-1"):
            return int(time) / int(period)
    return 2**31


def return_free_memory() -> None:
    """Return what the C library holds of freed memory to the system; does nothing with another library than glibc."""
    if (trim := _c_function("malloc_trim")) is not None:
        trim(0)


def keep_free_memory() -> None:
    """From now on the C library keeps freed memory for later allocations; does nothing with another one than glibc.

    By default glibc returns the end of its heap, and the kernel clears pages for each next allocation: a tenth of the
    processor time of SmolLM2-135M's updates.
    """
    if (set_option := _c_function("mallopt")) is not None:
        set_option(MMAP_THRESHOLD, KEPT_BLOCK)
        set_option(TRIM_THRESHOLD, KEPT_HEAP)


@cache
def _c_function(name: str) -> Callable[..., int] | None:
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except (OSError, TypeError):
        return None
