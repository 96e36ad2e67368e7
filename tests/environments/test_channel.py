"""Messages to and from a worker that does not keep to the rules."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

import pytest

from swarm.environments.verification.channel import Channel, Oversized, read_message, write_message


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, 1_000)
    with theirs:
        yield channel, theirs
    channel.close()


def test_messages_go_both_ways(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    channel.send(b"question")
    channel.send(b"")
    assert read_message(theirs.fileno()) == b"question" and read_message(theirs.fileno()) == b""
    write_message(theirs.fileno(), b"answer")
    assert channel.receive() == b"answer"
    assert channel.receive() is None


def test_a_message_in_pieces_is_not_waited_for(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    for piece in (b"\0\0", b"\0\3", b"ab"):
        theirs.sendall(piece)
        assert channel.receive() is None
    theirs.sendall(b"c")
    assert channel.receive() == b"abc"


def test_who_does_not_read_is_not_waited_for(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    content = os.urandom(2**22)
    channel.send(content)
    assert channel.blocked
    received = bytearray()
    while len(received) < len(content) + 4:
        received += theirs.recv(2**20)
        channel.flush()
    assert not channel.blocked and bytes(received[4:]) == content


@pytest.mark.parametrize("sent", [struct.pack("!I", 1_001), b"\xff" * 8, b"\0\0\0\1ab"])
def test_what_is_too_much_is_refused_before_it_is_stored(sent: bytes, ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    theirs.sendall(sent)
    with pytest.raises(Oversized):
        channel.receive()


def test_the_end_is_told(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    theirs.close()
    with pytest.raises(EOFError):
        channel.receive()
    with pytest.raises(ConnectionError):
        channel.send(b"x")
