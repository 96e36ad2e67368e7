"""The peak memory of this process above its memory at the start of the measurement."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import torch

PEAK, NOW = "VmHWM:", "VmRSS:"


class PeakMemory:
    """On a GPU torch's allocated memory, else the process's resident memory as counted by the kernel."""

    def __init__(self, device: str) -> None:
        """Free unused memory and start measuring."""
        self._cuda = device.startswith("cuda")
        gc.collect()
        if self._cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
        else:
            # Memory used and freed while loading would hide the same amount of the update's.
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")
            self._before = _status(NOW)

    def bytes(self) -> int:
        """The peak so far, above the start."""
        peak = torch.cuda.max_memory_allocated() if self._cuda else _status(PEAK)
        return int(peak - self._before)


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
