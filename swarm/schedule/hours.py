"""Hours of the day at which a node works, in local time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct

MINUTES_A_DAY = 24 * 60
TIMES = re.compile(r"((?:[01]?[0-9]|2[0-3]):[0-5][0-9])-((?:[01]?[0-9]|2[0-3]):[0-5][0-9]|24:00)")


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
