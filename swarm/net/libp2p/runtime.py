"""`AsyncRuntime` in trio; see `net/runtime.py`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

LOOK_UP_TIMEOUT_S = 5.0


class TrioSignal:
    """A reusable event with a timeout."""

    def __init__(self) -> None:
        """Cleared."""
        self._event = trio.Event()

    def set(self) -> None:
        """Wake the waiters; later waits return at once until `clear`."""
        self._event.set()

    def clear(self) -> None:
        """Reset: the next wait blocks until another `set`."""
        if self._event.is_set():
            self._event = trio.Event()

    async def wait_for(self, timeout_s: float) -> bool:
        """Wait for `set`; whether it happened in time."""
        event = self._event
        with trio.move_on_after(timeout_s):
            await event.wait()
        return bool(event.is_set())


class TrioRuntime:
    """`AsyncRuntime` in trio."""

    def signal(self) -> TrioSignal:
        """A new signal, cleared."""
        return TrioSignal()

    @asynccontextmanager
    async def timeout(self, timeout_s: float) -> AsyncIterator[None]:
        """A time limit. Raises `TimeoutError`."""
        try:
            with trio.fail_after(timeout_s):
                yield
        except trio.TooSlowError as error:
            raise TimeoutError from error

    async def sleep(self, duration_s: float) -> None:
        """Sleep."""
        await trio.sleep(duration_s)

    async def look_up(self, host: str) -> list[str]:
        """The IPs of a host name; empty if it cannot be resolved."""
        try:
            with trio.fail_after(LOOK_UP_TIMEOUT_S):
                found = await trio.socket.getaddrinfo(host, None)
        except (OSError, ValueError, trio.TooSlowError):
            return []
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))
