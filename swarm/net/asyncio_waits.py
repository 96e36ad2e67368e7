"""How a session in asyncio waits; see `waits`."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress


class AsyncioSignal(asyncio.Event):
    """An event with a time limit."""

    async def happens(self, timeout_s: float) -> bool:
        """Wait for it; whether it came in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if timeout_s == math.inf else timeout_s):
                return await self.wait()
        return False


class AsyncioWaits:
    """`Waits` in asyncio."""

    def signal(self) -> AsyncioSignal:
        """A new signal, not set."""
        return AsyncioSignal()

    def within(self, timeout_s: float) -> asyncio.Timeout:
        """A time limit. Raises `TimeoutError`."""
        return asyncio.timeout(timeout_s)

    async def sleep(self, duration_s: float) -> None:
        """Do nothing for a while."""
        await asyncio.sleep(duration_s)
