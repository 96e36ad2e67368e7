"""What the network's loops need of asyncio or trio; code written against this runs under both."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from swarm.protocols import Wakeup


class Signal(Protocol):
    """A reusable event that wakes a waiting loop."""

    def set(self) -> None:
        """Wake the waiters; later waits return at once until `clear`."""
        ...

    def clear(self) -> None:
        """Reset: the next wait blocks until another `set`."""
        ...

    async def wait_for(self, timeout_s: float) -> bool:
        """Wait for `set`; whether it happened in time."""
        ...


class AsyncRuntime(Protocol):
    """Signals, time limits, pauses and name look-ups of the session's library."""

    def signal(self) -> Signal:
        """A new signal, cleared."""
        ...

    def timeout(self, timeout_s: float) -> AbstractAsyncContextManager[object]:
        """A time limit. Raises `TimeoutError`."""
        ...

    async def sleep(self, duration_s: float) -> None:
        """Sleep."""
        ...

    async def look_up(self, host: str) -> list[str]:
        """The IPs of a host name; empty if it cannot be resolved."""
        ...


async def until(wakeup: Wakeup, runtime: AsyncRuntime, timeout_s: float) -> None:
    """Wait until it happens, or for `timeout_s`."""
    signal = runtime.signal()
    wakeup.watch(signal.set)
    try:
        await signal.wait_for(timeout_s)
    finally:
        wakeup.unwatch(signal.set)
