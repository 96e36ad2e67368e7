"""Parts of the processor for single processes, as if each had a machine of its own. Linux control groups, as root."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 20_000
"""Short: a process that has had its part waits a few milliseconds for the next."""
PATIENCE_S = 2.0


def missing(root: Path = ROOT) -> str | None:
    """Why processes cannot be limited here; None when they can."""
    if (root / "cpu").is_dir():
        folder = root / "cpu"
    else:
        folder, shared_out = root, root / "cgroup.subtree_control"
        if not shared_out.exists() or "cpu" not in shared_out.read_text().split():
            return f"Processes cannot be given parts of the processor: no control group in {root} shares it out."
    if not os.access(folder, os.W_OK):
        return f"Processes cannot be given parts of the processor: no group can be made in {folder}."
    return None


class CpuShares:
    """Limits of this process's children, gone when it is closed."""

    def __init__(self, root: Path = ROOT) -> None:
        """For where nothing is `missing`."""
        self._is_v1 = (root / "cpu").is_dir()
        self._root = root / "cpu" if self._is_v1 else root
        self._groups: list[Path] = []

    def limit(self, pid: int, cores: float) -> None:
        """Give the process, and what it starts from now on, so much processor time a second. Raises `OSError`."""
        group = self._root / f"swarm-bench-{os.getpid()}-{pid}"
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
            with contextlib.suppress(OSError):
                self._groups[-1].rmdir()
                self._groups.pop()
                continue
            time.sleep(0.05)
