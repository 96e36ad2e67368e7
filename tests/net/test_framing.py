from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from swarm.errors import PeerUnreachable
from swarm.net.records.envelope import (
    MAX_CHUNK_BYTES,
    MAX_ERROR_BYTES,
    MAX_REQUEST_BYTES,
    encode_answer,
    encode_error,
    encode_request,
    read_answer,
    read_request,
)


class Wire:
    """A stream that holds these bytes and then ends; remembers the largest read."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.largest = 0

    async def read(self, count: int) -> bytes:
        self.largest = max(self.largest, count)
        if len(self._content) < count:
            raise PeerUnreachable("ended")
        piece, self._content = self._content[:count], self._content[count:]
        return piece


def request_of(wire: Wire) -> bytes:
    async def read() -> bytes:
        return await read_request(wire.read)

    return asyncio.run(read())


def answer_of(wire: Wire, max_bytes: int = 10 * MAX_CHUNK_BYTES) -> list[bytes]:
    async def read() -> list[bytes]:
        return [chunk async for chunk in read_answer(wire.read, max_bytes)]

    return asyncio.run(read())


def framed(chunks: Sequence[bytes]) -> bytes:
    return b"".join(encode_answer(chunks))


def test_the_bytes_on_the_wire() -> None:
    assert encode_request(b"abc") == b"\0\0\0\3abc"
    assert framed([b"ab", b"", b"c"]) == b"\0\0\0\2ab\0\0\0\1c\0\0\0\0"
    assert encode_error("no") == b"\xff\xff\xff\xff\0\0\0\2no"


@given(st.binary(max_size=200), st.lists(st.binary(max_size=50), max_size=5))
def test_what_is_written_is_read(request: bytes, chunks: list[bytes]) -> None:
    assert request_of(Wire(encode_request(request))) == request
    assert answer_of(Wire(framed(chunks))) == [chunk for chunk in chunks if chunk]


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_within_bounds(junk: bytes) -> None:
    for read in (request_of, answer_of):
        wire = Wire(junk)
        with contextlib.suppress(PeerUnreachable):
            read(wire)
        assert wire.largest <= MAX_REQUEST_BYTES


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=4), st.data())
def test_an_answer_cut_short_is_never_taken_for_whole(chunks: list[bytes], data: st.DataObject) -> None:
    whole = framed(chunks)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(PeerUnreachable):
        answer_of(Wire(whole[:cut]))


def test_large_chunks_are_cut_and_large_requests_refused() -> None:
    sizes = [len(chunk) for chunk in answer_of(Wire(framed([bytes(2 * MAX_CHUNK_BYTES + 1)])))]
    assert sizes == [MAX_CHUNK_BYTES, MAX_CHUNK_BYTES, 1]
    with pytest.raises(ValueError, match="request"):
        encode_request(bytes(MAX_REQUEST_BYTES + 1))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ((MAX_CHUNK_BYTES + 1).to_bytes(4, "big"), "chunk must have at most"),
        (framed([bytes(60), bytes(60)]), "answer must have at most 100"),
        (encode_error("out of order"), "out of order"),
        (b"\xff\xff\xff\xff" + (MAX_ERROR_BYTES + 1).to_bytes(4, "big"), "error message must have"),
        (b"\xff\xff\xff\xff\0\0\0\1\xff", "error"),
    ],
)
def test_what_is_against_the_rules_is_refused_before_it_is_read(content: bytes, reason: str) -> None:
    with pytest.raises(PeerUnreachable, match=reason):
        answer_of(Wire(content), 100 if "100" in reason else 2**30)


def test_a_request_that_claims_too_much_is_refused() -> None:
    wire = Wire((MAX_REQUEST_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(PeerUnreachable, match="request must have"):
        request_of(wire)
    assert wire.largest == 4
    assert len(encode_error("é" * 5_000)) == 8 + MAX_ERROR_BYTES
