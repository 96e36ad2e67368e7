"""Signals, time limits and sleep for the network's loops, which run under asyncio or trio; and asyncio's version."""

from __future__ import annotations

import asyncio
import math
from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol

from swarm.protocols import Wakeup

LOOK_UP_TIMEOUT_S = 5.0


class Signal(Protocol):
    """A reusable event that wakes a waiting loop."""

    def set(self) -> None:
        """Wake the waiters; later waits return at once until `clear`."""

    def clear(self) -> None:
        """Reset: the next wait blocks until another `set`."""

    async def wait_for(self, timeout_s: float) -> bool:
        """Wait for `set`; whether it happened in time."""


class AsyncRuntime(Protocol):
    """Signals, time limits, pauses and name look-ups of the session's library."""

    def signal(self) -> Signal:
        """A new signal, cleared."""

    def timeout(self, timeout_s: float) -> AbstractAsyncContextManager[object]:
        """A time limit. Raises `TimeoutError`."""

    async def sleep(self, duration_s: float) -> None:
        """Sleep."""

    async def look_up(self, host: str) -> list[str]:
        """The IPs of a host name; empty if it cannot be resolved."""


async def until(wakeup: Wakeup, runtime: AsyncRuntime, timeout_s: float) -> None:
    """Wait until it happens, or for `timeout_s`."""
    signal = runtime.signal()
    wakeup.watch(signal.set)
    try:
        await signal.wait_for(timeout_s)
    finally:
        wakeup.unwatch(signal.set)


class AsyncioSignal(asyncio.Event):
    """An event with a timeout."""

    async def wait_for(self, timeout_s: float) -> bool:
        """Wait for `set`; whether it happened in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if timeout_s == math.inf else timeout_s):
                return await self.wait()
        return False


class AsyncioRuntime:
    """`AsyncRuntime` in asyncio."""

    def signal(self) -> AsyncioSignal:
        """A new signal, cleared."""
        return AsyncioSignal()

    def timeout(self, timeout_s: float) -> asyncio.Timeout:
        """A time limit. Raises `TimeoutError`."""
        return asyncio.timeout(timeout_s)

    async def sleep(self, duration_s: float) -> None:
        """Sleep."""
        await asyncio.sleep(duration_s)

    async def look_up(self, host: str) -> list[str]:
        """The IPs of a host name; empty if it cannot be resolved."""
        try:
            async with asyncio.timeout(LOOK_UP_TIMEOUT_S):
                found = await asyncio.get_running_loop().getaddrinfo(host, None)
        except (OSError, ValueError, TimeoutError):
            return []
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))
