"""A child process on an asyncio loop that any thread may have started; asyncio's own are started by the loop's."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from contextlib import suppress


class Child:
    """A started process: its output, and when it ends."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """Wrap a process whose output is a pipe, on the running loop; it is read from `attach` on."""
        self.output = asyncio.StreamReader()
        """What it prints."""
        self._process = process
        self._pipe: asyncio.ReadTransport | None = None
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        threading.Thread(target=self._reap, name="daemon-end", daemon=True).start()

    async def attach(self) -> None:
        """Begin to read its output."""
        self._pipe, _ = await self._loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self.output), self._process.stdout
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """How it has ended; None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait until it has ended; returns how."""
        return await asyncio.shield(self._ended)

    def close(self) -> None:
        """Read nothing more."""
        if self._pipe is not None:
            self._pipe.close()

    def _reap(self) -> None:
        code = self._process.wait()
        # The loop may have ended before it.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._note, code)

    def _note(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)
