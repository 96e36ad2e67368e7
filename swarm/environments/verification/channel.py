"""Messages between the verification pool and a worker: each after its length, on a socket pair.

The pool never waits for a worker, which may be under a stranger's control: what cannot be sent now is kept, what comes
in is bounded before it is stored.
"""

from __future__ import annotations

import os
import socket
import struct

_LENGTH = struct.Struct("!I")
_PIECE_BYTES = 2**18


class Oversized(Exception):
    """A message longer than any that is expected."""


class Channel:
    """The pool's end."""

    def __init__(self, end: socket.socket, max_message_bytes: int) -> None:
        """Messages of the other side may have at most `max_bytes`."""
        end.setblocking(False)
        self._socket = end
        self._max_message_bytes = max_message_bytes
        self._unsent = bytearray()
        self._received = bytearray()

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    @property
    def blocked(self) -> bool:
        """Whether some of what was sent waits for the other side to read."""
        return bool(self._unsent)

    def send(self, message: bytes) -> None:
        """Begin to send. Raises `ConnectionError` once the other side is gone."""
        self._unsent += _LENGTH.pack(len(message)) + message
        self.flush()

    def flush(self) -> None:
        """Send what the other side takes. Raises `ConnectionError`."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(bytes(self._unsent[:_PIECE_BYTES]))]
        except BlockingIOError:
            return

    def receive(self) -> bytes | None:
        """The next message; None when it is not complete yet. Raises `EOFError`, `ConnectionError`, `Oversized`."""
        try:
            piece = self._socket.recv(_PIECE_BYTES)
        except BlockingIOError:
            return None
        if not piece:
            raise EOFError
        self._received += piece
        if len(self._received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        # one question, one answer: a second one behind it was not asked for
        if length > self._max_message_bytes or len(self._received) > _LENGTH.size + length:
            raise Oversized(f"a message of {length} bytes, or more than one")
        if len(self._received) < _LENGTH.size + length:
            return None
        message = bytes(self._received[_LENGTH.size :])
        self._received.clear()
        return message

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def read_message(descriptor: int) -> bytes:
    """The worker's end: wait for a message. Raises `EOFError`, `ConnectionError`."""
    (length,) = _LENGTH.unpack(_read(descriptor, _LENGTH.size))
    return _read(descriptor, length)


def write_message(descriptor: int, message: bytes) -> None:
    """The worker's end: send a message. Raises `ConnectionError`."""
    unsent = memoryview(_LENGTH.pack(len(message)) + message)
    while unsent:
        unsent = unsent[os.write(descriptor, unsent) :]


def _read(descriptor: int, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = os.read(descriptor, min(size - len(received), _PIECE_BYTES))
        if not piece:
            raise EOFError
        received += piece
    return bytes(received)
