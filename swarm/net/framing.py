"""Requests and replies on a raw stream, whichever library carries it.

The client writes one length and the request. The server answers with frames: a length and a chunk each; length 0 ends
the reply; length `ERROR` is followed by one more length and a message for people. Lengths are 4 bytes, big-endian.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from swarm.errors import PeerUnreachable, TransportError

ReadExactly = Callable[[int], Awaitable[bytes]]
"""Reads this many bytes of a stream, no fewer."""

MAX_REQUEST_BYTES = 2**20
MAX_CHUNK_BYTES = 256 * 2**10
MAX_REPLY_BYTES = 64 * 2**20
MAX_ERROR_BYTES = 1_024
END = 0
ERROR = 0xFFFF_FFFF
LENGTH_BYTES = 4


def encode_request(request: bytes) -> bytes:
    """What a client writes. Raises `TransportError` when the request is too large."""
    if len(request) > MAX_REQUEST_BYTES:
        raise TransportError(f"a request must have at most {MAX_REQUEST_BYTES} bytes, got {len(request)}")
    return _length(len(request)) + request


def encode_reply(reply: bytes) -> Iterator[bytes]:
    """What a server writes, in pieces."""
    for start in range(0, len(reply), MAX_CHUNK_BYTES):
        chunk = reply[start : start + MAX_CHUNK_BYTES]
        yield _length(len(chunk)) + chunk
    yield _length(END)


def encode_error(message: str) -> bytes:
    """What a server writes instead of the rest of a reply."""
    # A cut through a character is mended by the reader, which replaces what it cannot decode.
    encoded = message.encode(errors="replace")[:MAX_ERROR_BYTES]
    return _length(ERROR) + _length(len(encoded)) + encoded


async def read_request(read: ReadExactly) -> bytes:
    """A client's request. Raises `TransportError` when it is larger than allowed."""
    return await read(await _read_length(read, MAX_REQUEST_BYTES, "request"))


async def read_reply(read: ReadExactly, max_bytes: int = MAX_REPLY_BYTES) -> bytes:
    """A server's whole reply. Raises `PeerUnreachable` with the server's message, `TransportError` for bad framing."""
    reply = bytearray()
    while (length := int.from_bytes(await read(LENGTH_BYTES))) != END:
        if length == ERROR:
            message = await read(await _read_length(read, MAX_ERROR_BYTES, "error message"))
            raise PeerUnreachable(message.decode(errors="replace"))
        if length > MAX_CHUNK_BYTES:
            raise TransportError(f"a chunk must have at most {MAX_CHUNK_BYTES} bytes, got {length}")
        if len(reply) + length > max_bytes:
            raise TransportError(f"this reply must have at most {max_bytes} bytes, got more")
        reply += await read(length)
    return bytes(reply)


async def _read_length(read: ReadExactly, most: int, what: str) -> int:
    length = int.from_bytes(await read(LENGTH_BYTES))
    if length > most:
        raise TransportError(f"the {what} must have at most {most} bytes, got {length}")
    return length


def _length(count: int) -> bytes:
    return count.to_bytes(LENGTH_BYTES)
