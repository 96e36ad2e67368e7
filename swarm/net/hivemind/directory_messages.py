"""What a node and the process of its directory say to each other, as msgpack with its length ahead, on a socket.

Each request gets one reply, in order. Neither end takes the other's word for a length above the limit.
"""

from __future__ import annotations

import asyncio

import msgspec

MAX_MESSAGE_BYTES = 4 * 2**20
MAX_RECORDS = 1_024
LENGTH_BYTES = 4


class Setup(msgspec.Struct, frozen=True, tag="setup"):
    """First message: which daemon to attach to, and which run's directory to keep."""

    control: str
    """Path of the daemon's control socket."""
    run_id: str
    keeps: bool
    """Whether to hold others' records."""


class Meet(msgspec.Struct, frozen=True, tag="meet"):
    """Make peers part of the DHT: all that are connected and in the run."""

    peer_ids: tuple[str, ...]
    first: bool


class Announce(msgspec.Struct, frozen=True, tag="announce"):
    """Store the node's own record with others."""

    peer_id: str
    sealed: bytes
    expires_at: float


class Read(msgspec.Struct, frozen=True, tag="read"):
    """Ask others for records, in one part or in all of them."""

    everything: bool


Request = Setup | Meet | Announce | Read


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The process is attached to the daemon."""


class Met(msgspec.Struct, frozen=True, tag="met"):
    """Those that are part of it."""

    peer_ids: tuple[str, ...]


class Announced(msgspec.Struct, frozen=True, tag="announced"):
    """Whether some node took the record."""

    taken: bool


class Found(msgspec.Struct, frozen=True, tag="found"):
    """Records as their peers signed them."""

    records: tuple[bytes, ...]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """What was asked for could not be done; the process goes on."""

    error: str


Reply = Ready | Met | Announced | Found | Failed

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder[Request](Request).decode
decode_reply = msgspec.msgpack.Decoder[Reply](Reply).decode


async def send(writer: asyncio.StreamWriter, message: Request | Reply) -> None:
    """Hand a message over."""
    encoded = encode(message)
    writer.write(len(encoded).to_bytes(LENGTH_BYTES, "big") + encoded)
    await writer.drain()


async def receive(reader: asyncio.StreamReader) -> bytes:
    """The next message, encoded. Raises `EOFError` at the end, and `ValueError` for one that is too large."""
    num_bytes = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    if num_bytes > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message must have at most {MAX_MESSAGE_BYTES} bytes, got {num_bytes}")
    return await reader.readexactly(num_bytes)
