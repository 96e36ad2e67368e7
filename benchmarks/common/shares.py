"""Parts of the processor for single processes, as if each had a machine of its own. Linux control groups, as root."""

from __future__ import annotations

import os
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 20_000
"""Short: a process that has had its part waits a few milliseconds for the next."""
PATIENCE_S = 2.0


def missing(root: Path = ROOT) -> str | None:
    """Why processes cannot be limited here; None when they can."""
    folder, shared_out = _parent(root), root / "cgroup.subtree_control"
    if folder == root and not (shared_out.exists() and "cpu" in shared_out.read_text().split()):
        return f"Processes cannot be given parts of the processor: no control group in {root} shares it out."
    if not os.access(folder, os.W_OK):
        return f"Processes cannot be given parts of the processor: no group can be made in {folder}."
    return None


def _parent(root: Path) -> Path:
    """Where groups are made: version 1 has a hierarchy for processor time alone."""
    return root / "cpu" if (root / "cpu").is_dir() else root


class CpuShares:
    """Limits of this process's children, gone when it is closed."""

    def __init__(self, root: Path = ROOT) -> None:
        """For where nothing is `missing`."""
        self._parent = _parent(root)
        self._is_v1 = self._parent != root
        self._groups: list[Path] = []

    def limit(self, pid: int, cores: float) -> None:
        """Limit the process, and what it starts from now on, to `cores` seconds of time a second. Raises `OSError`."""
        group = self._parent / f"swarm-bench-{os.getpid()}-{pid}"
        group.mkdir()
        self._groups.append(group)
        quota = round(cores * PERIOD_US)
        if self._is_v1:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        (group / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        """Remove the groups; those of processes that do not end stay."""
        deadline = time.monotonic() + PATIENCE_S
        while self._groups and time.monotonic() < deadline:
            try:
                self._groups[-1].rmdir()
            except OSError:  # its processes have not ended yet
                time.sleep(0.05)
            else:
                self._groups.pop()
