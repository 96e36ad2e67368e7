"""A child process on an asyncio loop, started by any thread; asyncio's own are started by the loop's."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from contextlib import suppress


class Child:
    """A started process: its output, and when it ends."""

    def __init__(self, process: subprocess.Popen[bytes], output: asyncio.StreamReader, pipe: asyncio.ReadTransport):
        """Use `of` instead."""
        self.output = output
        """What it prints, to be read."""
        self._process = process
        self._pipe = pipe
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        threading.Thread(target=self._reap, name="daemon-end", daemon=True).start()

    @classmethod
    async def of(cls, process: subprocess.Popen[bytes]) -> Child:
        """Wrap a process whose output is a pipe."""
        output = asyncio.StreamReader()
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), process.stdout
        )
        return cls(process, output, pipe)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """How it has ended; None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait until it has ended."""
        return await asyncio.shield(self._ended)

    def close(self) -> None:
        """Read nothing more."""
        self._pipe.close()

    def _reap(self) -> None:
        code = self._process.wait()
        # The loop may have ended before it.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._note, code)

    def _note(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)
