"""How a session in trio waits; see `waits`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

LOOK_UP_TIMEOUT_S = 5.0


class TrioSignal:
    """An event that can be cleared, with a time limit."""

    def __init__(self) -> None:
        """Not set."""
        self._event = trio.Event()

    def set(self) -> None:
        """Wake whoever waits, or keep them from waiting when they next would."""
        self._event.set()

    def clear(self) -> None:
        """Have the next to wait wait for another `set`."""
        if self._event.is_set():
            self._event = trio.Event()

    async def happens(self, timeout_s: float) -> bool:
        """Wait for it; whether it came in time."""
        event = self._event
        with trio.move_on_after(timeout_s):
            await event.wait()
        return bool(event.is_set())


class TrioWaits:
    """`Waits` in trio."""

    def signal(self) -> TrioSignal:
        """A new signal, not set."""
        return TrioSignal()

    @asynccontextmanager
    async def within(self, timeout_s: float) -> AsyncIterator[None]:
        """A time limit. Raises `TimeoutError`."""
        try:
            with trio.fail_after(timeout_s):
                yield
        except trio.TooSlowError as error:
            raise TimeoutError from error

    async def sleep(self, duration_s: float) -> None:
        """Do nothing for a while."""
        await trio.sleep(duration_s)

    async def look_up(self, host: str) -> list[str]:
        """The IPs that a name stands for; none when that cannot be told."""
        try:
            with trio.fail_after(LOOK_UP_TIMEOUT_S):
                found = await trio.socket.getaddrinfo(host, None)
        except (OSError, ValueError, trio.TooSlowError):
            return []
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))
