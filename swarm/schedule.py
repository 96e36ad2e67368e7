"""When a node works: what a person asked with `swarm pause`, and hours, power and GPU as the configuration has them.

`Schedule` says whether and why to pause, and until when; `Pausing` holds a node between its rounds. What the node gives
up meanwhile is its role's business. What watches the machine is in `swarm/extras/schedule`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
from msgspec import Struct
from pydantic import AfterValidator, Field

from swarm.errors import Interrupted
from swarm.files import replace_file
from swarm.kinds import extra
from swarm.settings import Settings

MINUTES_A_DAY = 24 * 60
TIMES = re.compile(r"((?:[01]?[0-9]|2[0-3]):[0-5][0-9])-((?:[01]?[0-9]|2[0-3]):[0-5][0-9]|24:00)")
PAUSE_FILE = "pause.json"
MAX_BYTES = 1_024
LOOK_EVERY_S = 0.2


class Window(Struct, frozen=True):
    """A part of every day, in minutes after midnight; one that ends before it starts passes midnight."""

    start: int
    end: int

    @classmethod
    def parse(cls, text: str) -> Window:
        """From `22:00-07:00`. Raises `ValueError`."""
        found = TIMES.fullmatch(text.replace(" ", ""))
        if found is None:
            raise ValueError(f"must be hours of the day such as 22:00-07:00, got {text!r:.40}")
        times = [part.split(":") for part in found.groups()]
        start, end = (int(hours) * 60 + int(minutes) for hours, minutes in times)
        if start == end:
            raise ValueError(f"must end at another time than it starts, got {text!r:.40}")
        return cls(start, end % MINUTES_A_DAY)

    def holds(self, minute: int) -> bool:
        """Whether a minute of the day is in it."""
        length = (self.end - self.start) % MINUTES_A_DAY or MINUTES_A_DAY
        return (minute - self.start) % MINUTES_A_DAY < length


def next_start(windows: Sequence[Window], now: datetime) -> datetime | None:
    """When work may begin, in local time; None when it may now."""
    minute = now.hour * 60 + now.minute
    if not windows or any(window.holds(minute) for window in windows):
        return None
    wait = min((window.start - minute) % MINUTES_A_DAY for window in windows)
    return now.replace(second=0, microsecond=0) + timedelta(minutes=wait)


def _readable(text: str) -> str:
    Window.parse(text)
    return text


Hours = Annotated[str, AfterValidator(_readable)]


class ScheduleSettings(Settings):
    """When the node works; otherwise it pauses between two rounds and stays a member. See docs/operate.md."""

    hours: tuple[Hours, ...] = ()
    """Local times of day at which it works, such as `22:00-07:00`; default: always."""
    only_on_ac: bool = False
    """Pause while the machine runs on its battery. A machine without a battery is always on AC power."""
    gpu_idle_s: float | None = Field(None, ge=0)
    """Work only when no other program has used an NVIDIA GPU for so many seconds, e.g. 300; needs `nvidia-smi`.
    Not in a container without the machine's process numbers, nor with several processes (torchrun)."""


class AskedPause(Struct, frozen=True):
    """A pause that a person asked for: a file in the node's directory, which `swarm resume` removes."""

    until: float | None = None
    """Unix seconds; None for no end."""


def ask(out: Path, pause: AskedPause) -> None:
    """Have the node of a directory pause. Raises `OSError`."""
    replace_file(out / PAUSE_FILE, msgspec.json.encode(pause), mode=0o644)  # perhaps by root, for another user's node


def withdraw(out: Path) -> bool:
    """End the pause that was asked for; whether there was one. Raises `OSError`."""
    there = (out / PAUSE_FILE).exists()
    (out / PAUSE_FILE).unlink(missing_ok=True)
    return there


def asked(out: Path, now: float) -> AskedPause | None:
    """The pause that holds at `now`, in Unix seconds; a file that cannot be read asks for one without an end."""
    try:
        with (out / PAUSE_FILE).open("rb") as file:
            text = file.read(MAX_BYTES)
    except FileNotFoundError:
        return None
    try:
        pause = msgspec.json.decode(text, type=AskedPause)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return AskedPause()
    return None if pause.until is not None and pause.until <= now else pause


class Pause(Struct, frozen=True):
    """A pause, for people and for the metrics file."""

    why: str
    until: float | None = None
    """Unix seconds; None when that is not known."""


class Watcher(Protocol):
    """Watches the machine for a reason to pause."""

    def why(self) -> str | None:
        """Why the node is to pause now; None when it may work."""

    def close(self) -> None:
        """Stop watching."""


class Schedule:
    """What a person asked for, then the settings in their order; the first that holds is the reason."""

    def __init__(
        self,
        settings: ScheduleSettings,
        out: Path,
        clock: Callable[[], float] = time.time,
        watchers: Sequence[Watcher] | None = None,
    ) -> None:
        """The schedule of the node in `out`; `clock` gives Unix seconds, `watchers` replace those that the settings
        ask for. Raises `ConfigError`."""
        self._settings = settings
        self._out = out
        self._clock = clock
        self._windows = [Window.parse(text) for text in settings.hours]
        watched = settings.only_on_ac or settings.gpu_idle_s is not None
        if watchers is None:
            watchers = extra("schedule.watchers").open_watchers(settings) if watched else ()
        self._watchers = watchers

    def pause(self) -> Pause | None:
        """The pause that holds now; None when the node may work."""
        now = self._clock()
        if (found := asked(self._out, now)) is not None:
            return Pause("asked for with `swarm pause`", found.until)
        if (start := next_start(self._windows, datetime.fromtimestamp(now))) is not None:
            return Pause(f"outside of the hours {', '.join(self._settings.hours)}", start.timestamp())
        why = next((why for watcher in self._watchers if (why := watcher.why()) is not None), None)
        return None if why is None else Pause(why)

    def close(self) -> None:
        """Stop watching."""
        for watcher in self._watchers:
            watcher.close()


class Pausable(Protocol):
    """A node that can pause."""

    def on_pause(self) -> None:
        """A pause begins."""

    def while_paused(self) -> None:
        """Called now and then during a pause."""

    def on_resume(self) -> None:
        """A pause is over."""


class Diary(Protocol):
    """Writes what people read of pauses."""

    def paused(self, why: str, until: float | None) -> None:
        """The node pauses, or pauses for another reason."""

    def resumed(self) -> None:
        """The pause is over."""


class Pausing:
    """The pauses of one node, which its metrics file reports: views and `swarm health` read them there."""

    def __init__(self, schedule: Schedule, node: Pausable, diary: Diary, cancelled: Callable[[], bool]) -> None:
        """`cancelled`: whether the node is to stop."""
        self._schedule = schedule
        self._node = node
        self._diary = diary
        self._cancelled = cancelled
        self._reported: Pause | None = None
        """The pause in the last event; None while the node works."""

    @property
    def due(self) -> bool:
        """Whether `hold` would hold."""
        return self._schedule.pause() is not None

    def hold(self) -> bool:
        """Wait for a moment if the node is to pause; whether it is."""
        pause = self._schedule.pause()
        if pause is None:
            if self._reported is not None:
                self._reported = None
                self._node.on_resume()
                self._diary.resumed()
            return False
        if self._reported is None:
            self._node.on_pause()
        if pause != self._reported:
            self._reported = pause
            self._diary.paused(pause.why, pause.until)
        self._node.while_paused()
        time.sleep(LOOK_EVERY_S)
        return True

    def wait(self) -> None:
        """Return when the node may work. Raises `Interrupted` when it is to stop instead."""
        while self.hold():
            if self._cancelled():
                raise Interrupted("stopped while paused")

    def close(self) -> None:
        """Stop watching the machine."""
        self._schedule.close()
