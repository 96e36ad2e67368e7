"""An event loop for coroutines that wait for each other alone: no sockets, which the sandbox refuses, and no clock."""

from __future__ import annotations

import asyncio


class Coroutines(asyncio.BaseEventLoop):
    """Runs coroutines in an order that depends on them alone.

    Its time stands still while anything can run; then it jumps to the next timer. Waiting for anything else raises
    `RuntimeError`. Whatever is pending when it is dropped is dropped with it, silently.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._selector = self  # of the parts of a selector, the base class needs `select` alone
        self.set_exception_handler(lambda loop, context: None)

    def time(self) -> float:
        """Seconds that were waited for."""
        return self._now

    def select(self, timeout: float | None) -> list[object]:
        """Let so much time pass."""
        if timeout is None:
            raise RuntimeError("an environment waits for something that is not here, such as a network or a process")
        self._now += timeout
        return []

    def _process_events(self, events: list[object]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """No other thread wakes this loop up."""

    def __del__(self) -> None:
        """Close without a warning."""
        self.close()
