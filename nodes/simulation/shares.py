"""Limits processes to fractions of the processor, as if each had its own machine. Linux control groups, as root."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 20_000
"""Short, so that a process waits only a few milliseconds for its next share."""
WEIGHT = 10
"""Relative to processes without a limit, which only get what limited ones leave."""
PATIENCE_S = 2.0
PREFIX = "swarm-bench-"


def missing(root: Path = ROOT) -> str | None:
    """Why processes cannot be limited here; None when they can."""
    folder, shared_out = _parent(root), root / "cgroup.subtree_control"
    if folder == root and not (shared_out.exists() and "cpu" in shared_out.read_text().split()):
        return f"Processes cannot be limited: no control group in {root} provides the cpu controller."
    if not os.access(folder, os.W_OK):
        return f"Processes cannot be limited: no group can be created in {folder}."
    return None


def _parent(root: Path) -> Path:
    """Parent of new groups: version 1 has a separate hierarchy for CPU time."""
    return root / "cpu" if (root / "cpu").is_dir() else root


class CpuShares:
    """CPU limits of this process's children, removed when closed."""

    def __init__(self, root: Path = ROOT) -> None:
        """Requires that nothing is `missing` once a process is limited."""
        self._parent = _parent(root)
        self._is_v1 = self._parent != root
        self._groups: list[Path] = []
        _remove_abandoned(self._parent)

    def limit(self, pid: int, cores: float) -> None:
        """Give the process and its future children `cores` CPU seconds per second, and no more. Raises `OSError`."""
        group = self._parent / f"{PREFIX}{os.getpid()}-{pid}"
        group.mkdir()
        self._groups.append(group)
        quota = round(cores * PERIOD_US)
        if self._is_v1:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
            (group / "cpu.shares").write_text(str(1024 * WEIGHT))
        else:
            (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
            (group / "cpu.weight").write_text(str(100 * WEIGHT))
        (group / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        """Remove the groups, except those of processes that do not end."""
        deadline = time.monotonic() + PATIENCE_S
        while self._groups and time.monotonic() < deadline:
            try:
                self._groups[-1].rmdir()
            except OSError:  # its processes have not ended yet
                time.sleep(0.05)
            else:
                self._groups.pop()


def _remove_abandoned(parent: Path) -> None:
    """Remove the groups of processes that were killed before they could."""
    for group in parent.glob(f"{PREFIX}*"):
        owner = group.name.removeprefix(PREFIX).partition("-")[0]
        if not Path("/proc", owner).exists():
            with contextlib.suppress(OSError):  # its own processes have not ended yet
                group.rmdir()
