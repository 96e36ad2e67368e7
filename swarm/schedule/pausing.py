"""Holds a role between two steps while its node is paused."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from swarm.errors import Interrupted
from swarm.schedule.schedule import Pause, Schedule

LOOK_EVERY_S = 0.2


class Pausable(Protocol):
    """A node that can pause."""

    def on_pause(self) -> None:
        """A pause begins."""
        ...

    def while_paused(self) -> None:
        """Called now and then during a pause."""
        ...

    def on_resume(self) -> None:
        """A pause is over."""
        ...


class Diary(Protocol):
    """Writes what people read of pauses."""

    def paused(self, why: str, until: float | None) -> None:
        """The node pauses, or pauses for another reason."""
        ...

    def resumed(self) -> None:
        """The pause is over."""
        ...


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
        """Watch the machine no more."""
        self._schedule.close()
