"""One end of a socket between two processes that may both send at any time.

Two blocking ends can each wait for the other to read. Here neither sending nor a slow reader holds anybody up: threads
move the messages, which wait in this process without limit.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue

_END = b""
"""In a queue: nothing follows. No message is empty."""


class Duplex:
    """Sends and receives messages in order; any thread may send, one at a time receives."""

    def __init__(self, connection: Connection) -> None:
        """Nobody else may use `connection`; its threads end when the other end is closed."""
        self._connection = connection
        self._unsent: SimpleQueue[bytes] = SimpleQueue()
        self._received: SimpleQueue[bytes] = SimpleQueue()
        for work in (self._send, self._receive):
            threading.Thread(target=work, name=f"engine{work.__name__}", daemon=True).start()

    def send(self, message: bytes) -> None:
        """Start to send; whoever receives learns that the other end is closed."""
        self._unsent.put(message)

    def receive(self, timeout_s: float) -> bytes | None:
        """The next message; None when there is none for so long.

        Raises `EOFError` when the other end is closed and all its messages were received.
        """
        try:
            message = self._received.get(timeout=timeout_s)
        except Empty:
            return None
        if message == _END:
            self._received.put(_END)
            raise EOFError
        return message

    def _send(self) -> None:
        with suppress(OSError):
            while (message := self._unsent.get()) != _END:
                self._connection.send_bytes(message)

    def _receive(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._received.put(self._connection.recv_bytes())
        self._received.put(_END)
        self._unsent.put(_END)
