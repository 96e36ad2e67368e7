"""How a loop waits, whichever library runs it: what is written against this runs under asyncio and under trio."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol


class Signal(Protocol):
    """Something to wake a waiting loop with, again and again."""

    def set(self) -> None:
        """Wake whoever waits, or keep them from waiting when they next would."""
        ...

    def clear(self) -> None:
        """Have the next to wait wait for another `set`."""
        ...

    async def happens(self, timeout_s: float) -> bool:
        """Wait for it; whether it came in time."""
        ...


class Waits(Protocol):
    """How the session's library waits."""

    def signal(self) -> Signal:
        """A new signal, not set."""
        ...

    def within(self, timeout_s: float) -> AbstractAsyncContextManager[object]:
        """A time limit. Raises `TimeoutError`."""
        ...

    async def sleep(self, duration_s: float) -> None:
        """Do nothing for a while."""
        ...

    async def look_up(self, host: str) -> list[str]:
        """The IPs that a name stands for; none when that cannot be told."""
        ...
