"""Watches the battery, and the use of NVIDIA GPUs by other programs, as `nvidia-smi` reports it for each process."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable

import psutil

from swarm.errors import ConfigError
from swarm.schedule import ScheduleSettings, Watcher

LOOK_EVERY_S = 10.0
TIMEOUT_S = 10.0
USED = 5.0
"""Percent of a GPU's time above which a process uses it; a desktop's drawing stays below."""

UseOfOthers = Callable[[], float | None]
"""Percent of a GPU's time that other programs took; None where it is not known."""


def open_watchers(settings: ScheduleSettings) -> list[Watcher]:
    """The watchers that the settings ask for, in their order. Raises `ConfigError`."""
    watchers: list[Watcher] = [BatteryWatch()] if settings.only_on_ac else []
    return watchers if settings.gpu_idle_s is None else [*watchers, GpuWatch(settings.gpu_idle_s)]


class BatteryWatch:
    """Pauses a node while the machine runs on its battery."""

    def why(self) -> str | None:
        """See `Watcher`."""
        battery = psutil.sensors_battery()
        return "the machine runs on its battery" if battery is not None and battery.power_plugged is False else None

    def close(self) -> None:
        """See `Watcher`."""


class GpuWatch:
    """Pauses a node until no other program has used a GPU for a while.

    A thread looks now and then, because a look takes about a second.
    """

    def __init__(self, idle_s: float, use: UseOfOthers | None = None, every_s: float = LOOK_EVERY_S) -> None:
        """Look once, then regularly. Raises `ConfigError` where nothing reports the use of the GPUs."""
        if use is None and shutil.which("nvidia-smi") is None:
            raise ConfigError(
                "schedule.gpu_idle_s: nvidia-smi is not here, and nothing else tells whether other programs use the "
                "GPU; install the NVIDIA driver's tools, or leave it out"
            )
        self._idle_s = idle_s
        self._use = use or use_of_others
        self._every_s = every_s
        self._used_at: float | None = None
        self._closed = threading.Event()
        self._look()
        threading.Thread(target=self._run, name="gpu use", daemon=True).start()

    def why(self) -> str | None:
        """See `Watcher`."""
        if self._used_at is None or time.monotonic() - self._used_at >= self._idle_s:
            return None
        return f"another program has used the GPU within the last {self._idle_s:g} s"

    def close(self) -> None:
        """See `Watcher`."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            self._look()

    def _look(self) -> None:
        use = self._use()
        if use is not None and use > USED:
            self._used_at = time.monotonic()


def use_of_others() -> float | None:
    """Percent of a GPU's time that processes other than this node's took; None where that is not known."""
    try:
        asked = subprocess.run(
            ["nvidia-smi", "pmon", "-c", "1", "-s", "u"], capture_output=True, text=True, timeout=TIMEOUT_S
        )
        own = psutil.Process()
        pids = {own.pid, *(child.pid for child in own.children(recursive=True))}
        return _others(asked.stdout, pids) if asked.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, psutil.Error):
        return None


def _others(table: str, own: set[int]) -> float | None:
    """The sum over foreign processes of this machine; None for a table without these columns."""
    lines = [line.split() for line in table.splitlines() if line.strip()]
    names = lines[0][1:] if lines and lines[0][0] == "#" else []
    if not {"pid", "sm"} <= set(names):
        return None
    rows = [dict(zip(names, line, strict=False)) for line in lines if line[0] != "#" and len(line) >= len(names)]
    used = {int(row["pid"]): float(row["sm"]) for row in rows if row["pid"].isdecimal() and row["sm"].isdecimal()}
    # In a container the tool may name processes by other numbers than this one knows, its own included.
    return sum(percent for pid, percent in used.items() if pid not in own and psutil.pid_exists(pid))
