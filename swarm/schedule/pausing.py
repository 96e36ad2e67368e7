"""Holds a role between two steps while its node is paused."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from swarm.errors import Interrupted
from swarm.schedule.schedule import Pause, Schedule

LOOK_EVERY_S = 0.2


def _nothing() -> None:
    pass


class Diary(Protocol):
    """Writes what people read of pauses."""

    def paused(self, why: str, until: float | None) -> None:
        """The node pauses, or pauses for another reason."""
        ...

    def went_on(self) -> None:
        """The pause is over."""
        ...


class Pausing:
    """The pauses of one node, which its metrics file tells of: views and `swarm health` read them there."""

    def __init__(
        self,
        schedule: Schedule,
        diary: Diary,
        cancelled: Callable[[], bool],
        rest: Callable[[], None] = _nothing,
        idle: Callable[[], None] = _nothing,
        go_on: Callable[[], None] = _nothing,
    ) -> None:
        """`rest` is called when a pause begins, `idle` now and then during it, `go_on` after it."""
        self._schedule = schedule
        self._diary = diary
        self._cancelled = cancelled
        self._rest = rest
        self._idle = idle
        self._go_on = go_on
        self._told: Pause | None = None
        """The pause in the last event; None while the node works."""

    @property
    def due(self) -> bool:
        """Whether `hold` would hold."""
        return self._schedule.pause() is not None

    def hold(self) -> bool:
        """Wait for a moment if the node is to pause; whether it is."""
        pause = self._schedule.pause()
        if pause is None:
            if self._told is not None:
                self._told = None
                self._go_on()
                self._diary.went_on()
            return False
        if self._told is None:
            self._rest()
        if pause != self._told:
            self._told = pause
            self._diary.paused(pause.why, pause.until)
        self._idle()
        time.sleep(LOOK_EVERY_S)
        return True

    def wait(self) -> None:
        """Return when the node may work. Raises `Interrupted` when it is to stop instead."""
        while self.hold():
            if self._cancelled():
                raise Interrupted("stopped while paused")

    def close(self) -> None:
        """Watch the machine no more."""
        self._schedule.close()
