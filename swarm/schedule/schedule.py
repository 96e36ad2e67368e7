"""Whether a node is to pause, why, and until when."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import psutil
from msgspec import Struct

from swarm.schedule.config import ScheduleSettings
from swarm.schedule.gpu import GpuWatch
from swarm.schedule.hours import Window, next_start
from swarm.schedule.pause_file import asked


class Pause(Struct, frozen=True):
    """A pause, for people and for the metrics file."""

    why: str
    until: float | None = None
    """Unix seconds; None when that is not known."""


OnBattery = Callable[[], bool]


def on_battery() -> bool:
    """Whether the machine runs on its battery."""
    battery = psutil.sensors_battery()
    return battery is not None and battery.power_plugged is False


class Schedule:
    """What a person asked for, then the settings in their order; the first that holds is the reason."""

    def __init__(
        self,
        settings: ScheduleSettings,
        out: Path,
        clock: Callable[[], float] = time.time,
        on_battery: OnBattery = on_battery,
        gpus: GpuWatch | None = None,
    ) -> None:
        """Of the node in `out`; `clock` gives Unix seconds. Raises `ConfigError`."""
        self._settings = settings
        self._out = out
        self._clock = clock
        self._on_battery = on_battery
        self._windows = [Window.parse(text) for text in settings.hours]
        self._gpus = gpus or (GpuWatch() if settings.gpu_idle_s is not None else None)

    def pause(self) -> Pause | None:
        """The pause that holds now; None when the node may work."""
        now = self._clock()
        if (found := asked(self._out, now)) is not None:
            return Pause("asked for with `swarm pause`", found.until)
        if (start := next_start(self._windows, datetime.fromtimestamp(now))) is not None:
            return Pause(f"outside of the hours {', '.join(self._settings.hours)}", start.timestamp())
        if self._settings.only_on_ac and self._on_battery():
            return Pause("the machine runs on its battery")
        idle_s = self._gpus.idle_s() if self._gpus else None
        if self._settings.gpu_idle_s is not None and idle_s is not None and idle_s < self._settings.gpu_idle_s:
            return Pause(f"another program has used the GPU within the last {self._settings.gpu_idle_s:g} s")
        return None

    def close(self) -> None:
        """Watch no more."""
        if self._gpus is not None:
            self._gpus.close()
