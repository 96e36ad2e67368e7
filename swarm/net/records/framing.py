"""Framing of requests and streamed answers on a libp2p stream, for both network libraries.

    client   length | request                                  at most 1 MiB
    server   (length | chunk)* , 0                             chunks of 1 byte to 256 KiB, then the end
             (length | chunk)* , 0xFFFFFFFF, length | message  or an error, in UTF-8

Lengths are 4 bytes, big-endian. Readers take a `ReadExactly` of asyncio or trio. A length is checked before any memory
is allocated for it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator

from swarm.errors import PeerUnreachable
from swarm.protocols import Wakeup

MAX_REQUEST_BYTES = 2**20
MAX_CHUNK_BYTES = 2**18
MAX_ERROR_BYTES = 1_024
MAX_REPLY_BYTES = 2 * 2**20
"""Limit of an answer that is read as a whole."""
REQUEST_TIMEOUT_S = 10.0
REFUSAL_TIMEOUT_S = 1.0
"""Time limit for the request of a peer that will be refused as busy."""
STALL_TIMEOUT_S = 30.0
"""A peer that accepts no byte of its answer for this time is disconnected."""
NOT_YET_S = 0.02
"""Pause before a handler whose next chunk is not ready is polled again, if it does not say what to wait for."""
LOOK_AGAIN_S = 1.0
"""A handler that said what it waits for is polled after this time at the latest."""
LENGTH_BYTES = 4
END = bytes(LENGTH_BYTES)
ERROR_LENGTH = 0xFFFFFFFF

ReadExactly = Callable[[int], Awaitable[bytes]]
"""Reads exactly that many bytes. Raises `PeerUnreachable` if the stream ends first."""


def encode_request(request: bytes) -> bytes:
    """The client's frame of a request. Raises `ValueError` if it is too large."""
    if len(request) > MAX_REQUEST_BYTES:
        raise ValueError(f"a request must have at most {MAX_REQUEST_BYTES} bytes, got {len(request)}")
    return _length(len(request)) + request


def encode_answer(chunks: Iterable[bytes | Wakeup | None]) -> Iterator[bytes | Wakeup]:
    """The frames of an answer, one at a time. Large chunks are split, empty ones skipped.

    While the next chunk is not ready: what to wait for, or an empty frame (None).
    """
    for chunk in chunks:
        if not isinstance(chunk, bytes):
            yield chunk or b""
            continue
        for start in range(0, len(chunk), MAX_CHUNK_BYTES):
            piece = chunk[start : start + MAX_CHUNK_BYTES]
            yield _length(len(piece)) + piece
    yield END


def encode_error(message: str) -> bytes:
    """The frame that ends an answer with an error; a long message is truncated."""
    encoded = message.encode(errors="replace")[:MAX_ERROR_BYTES]
    return _length(ERROR_LENGTH) + _length(len(encoded)) + encoded


async def read_request(read: ReadExactly) -> bytes:
    """The request at the start of a stream. Raises `PeerUnreachable` if it is too large or truncated."""
    return await _read_block(read, await _read_length(read), MAX_REQUEST_BYTES, "request")


async def read_answer(read: ReadExactly, max_bytes: int) -> AsyncGenerator[bytes, None]:
    """The chunks of an answer as they arrive.

    Raises `PeerUnreachable` for an error that the peer sent, an invalid frame, a stream without an end frame, or more
    than `max_bytes` in total.
    """
    room = max_bytes
    while (length := await _read_length(read)) != 0:
        if length == ERROR_LENGTH:
            message = await _read_block(read, await _read_length(read), MAX_ERROR_BYTES, "error message")
            raise PeerUnreachable(f"it answered with an error: {message.decode(errors='replace')}")
        if length > room:
            raise PeerUnreachable(f"an answer must have at most {max_bytes} bytes, got more")
        room -= length
        yield await _read_block(read, length, MAX_CHUNK_BYTES, "chunk")


def _length(value: int) -> bytes:
    return value.to_bytes(LENGTH_BYTES, "big")


async def _read_length(read: ReadExactly) -> int:
    return int.from_bytes(await read(LENGTH_BYTES), "big")


async def _read_block(read: ReadExactly, length: int, most: int, what: str) -> bytes:
    if length > most:
        raise PeerUnreachable(f"a {what} must have at most {most} bytes, got {length}")
    return await read(length) if length else b""
