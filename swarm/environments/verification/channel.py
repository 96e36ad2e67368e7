"""Length-prefixed messages between the verification pool and a worker, on a socket pair.

The pool never blocks on a worker, which an attacker may control: it buffers what it cannot send, and bounds input
before it stores it.
"""

from __future__ import annotations

import os
import socket
import struct

_LENGTH = struct.Struct("!I")
_PIECE_BYTES = 2**18


class Oversized(Exception):
    """A message exceeds the limit."""


class Channel:
    """The pool's end of a socket pair."""

    def __init__(self, end: socket.socket, max_message_bytes: int) -> None:
        """Accepts messages of at most `max_bytes`."""
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
        """Whether sent bytes are still buffered."""
        return bool(self._unsent)

    def send(self, message: bytes) -> None:
        """Start to send. Raises `ConnectionError` when the other end is closed."""
        self._unsent += _LENGTH.pack(len(message)) + message
        self.flush()

    def flush(self) -> None:
        """Send as much as the socket accepts. Raises `ConnectionError`."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(bytes(self._unsent[:_PIECE_BYTES]))]
        except BlockingIOError:
            return

    def receive(self) -> bytes | None:
        """The next message; None while it is incomplete. Raises `EOFError`, `ConnectionError`, `Oversized`."""
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
        # one request, one reply: refuse any bytes after it
        if length > self._max_message_bytes or len(self._received) > _LENGTH.size + length:
            raise Oversized(f"a message of {length} bytes, or more than one")
        if len(self._received) < _LENGTH.size + length:
            return None
        message = bytes(self._received[_LENGTH.size :])
        self._received.clear()
        return message

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def read_message(descriptor: int) -> bytes:
    """For the worker: wait for a message. Raises `EOFError`, `ConnectionError`."""
    (length,) = _LENGTH.unpack(_read(descriptor, _LENGTH.size))
    return _read(descriptor, length)


def write_message(descriptor: int, message: bytes) -> None:
    """For the worker: send a message. Raises `ConnectionError`."""
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
