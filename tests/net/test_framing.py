from __future__ import annotations

import asyncio
import io
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import PeerUnreachable, TransportError
from swarm.net import framing
from swarm.net.framing import (
    MAX_CHUNK_BYTES,
    MAX_REQUEST_BYTES,
    ReadExactly,
    encode_error,
    encode_reply,
    encode_request,
    read_reply,
    read_request,
)


def reader(written: bytes) -> ReadExactly:
    stream = io.BytesIO(written)

    async def read(count: int) -> bytes:
        found = stream.read(count)
        if len(found) < count:
            raise TransportError("the peer hung up")
        return found

    return read


def request_in(written: bytes) -> bytes:
    return asyncio.run(read_request(reader(written)))


def reply_in(written: bytes, max_bytes: int = framing.MAX_REPLY_BYTES) -> bytes:
    return asyncio.run(read_reply(reader(written), max_bytes))


def test_the_bytes_on_the_wire() -> None:
    assert encode_request(b"abc") == b"\0\0\0\3abc"
    assert b"".join(encode_reply(b"")) == bytes(4)
    assert b"".join(encode_reply(b"abc")) == b"\0\0\0\3abc" + bytes(4)
    assert encode_error("no") == b"\xff\xff\xff\xff\0\0\0\2no"
    long = bytes(MAX_CHUNK_BYTES) + b"x"
    assert list(encode_reply(long)) == [b"\0\4\0\0" + bytes(MAX_CHUNK_BYTES), b"\0\0\0\1x", bytes(4)]


@pytest.mark.parametrize("size", [0, 1, MAX_CHUNK_BYTES, MAX_CHUNK_BYTES + 1, 3 * MAX_CHUNK_BYTES])
def test_what_is_written_is_read(size: int) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert reply_in(b"".join(encode_reply(payload))) == payload
    assert request_in(encode_request(payload)) == payload


def test_a_servers_error_reaches_the_client_also_within_a_reply() -> None:
    with pytest.raises(PeerUnreachable, match="^kapütt$"):
        reply_in(encode_error("kapütt"))
    with pytest.raises(PeerUnreachable, match="^late$"):
        reply_in(b"\0\0\0\3abc" + encode_error("late"))
    with pytest.raises(PeerUnreachable, match="é{100}"):
        reply_in(encode_error("x" + "é" * 10_000))


def test_what_is_too_large_is_refused_before_it_is_read() -> None:
    with pytest.raises(TransportError, match="request must have at most"):
        encode_request(bytes(MAX_REQUEST_BYTES + 1))
    with pytest.raises(TransportError, match="request must have at most"):
        request_in(b"\x7f\xff\xff\xff")
    with pytest.raises(TransportError, match="chunk must have at most"):
        reply_in(b"\x7f\xff\xff\xff")
    with pytest.raises(TransportError, match="error message must have at most"):
        reply_in(b"\xff\xff\xff\xff\x7f\xff\xff\xff")
    with pytest.raises(TransportError, match="reply must have at most 5 bytes"):
        reply_in(b"".join(encode_reply(b"abc"))[:-4] + b"".join(encode_reply(b"def")), 5)


@given(st.binary(max_size=64))
def test_arbitrary_bytes_only_ever_raise_transport_errors(written: bytes) -> None:
    for read in (request_in, reply_in):
        with suppress(TransportError):
            read(written)
