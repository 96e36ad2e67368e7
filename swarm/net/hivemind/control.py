"""The daemon's sockets: its control protocol, in protobuf, and the streams that peers open.

The control protocol is a request and its answer on a connection to the control socket. A relay reservation takes two
messages of libp2p's circuit relay protocol: a request, and the relay's answer with its limits.
"""

from __future__ import annotations

import asyncio
import logging
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from swarm.errors import TransportError
from swarm.net.hivemind import light_import
from swarm.net.records.envelope import (
    REQUEST_TIMEOUT_S,
    STALL_TIMEOUT_S,
)
from swarm.net.runtime import AsyncioRuntime
from swarm.net.services.streams import Gatekeeper, Unlimited, answer_stream
from swarm.protocols import StreamHandler

with light_import.without_the_rest():
    from hivemind.p2p import PeerID
    from hivemind.p2p.p2p_daemon_bindings.utils import read_pbmsg_safe, write_pbmsg
    from hivemind.proto import p2pd_pb2
    from hivemind.utils.multiaddr import Multiaddr

logger = logging.getLogger(__name__)

TIMEOUT_S = 15.0
BUFFER_BYTES = 2**19
P2P_CODE = b"\xa5\x03"
CIRCUIT_CODE = b"\xa2\x02"
"""Multicodec numbers 421 and 290 as varints."""

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
SELF_DESCRIPTION = "/ipfs/id/push/1.0.0"
"""Protocol by which peers push descriptions of themselves. The daemon would dial the addresses, and keep the protocol
names for good: 75 KB for a message of 8 KB. So such streams come here, count as requests, and are not read."""
HOP_PROTOCOL = "/libp2p/circuit/relay/0.2.0/hop"
"""Protocol by which peers have a relay carry their traffic. The daemon serves it even where it is to be no relay, with
limits by default (2 minutes and 128 KiB a circuit); so such streams of a node that is none come here, too."""
UNREAD = frozenset({SELF_DESCRIPTION, HOP_PROTOCOL})
RESERVE = b"\x08\x00"
"""A `HopMessage` of type RESERVE."""
MAX_REPLY_BYTES = 4_096
OK = 100
STATUS_FIELD, LIMIT_FIELD = 5, 4
DURATION_FIELD, DATA_FIELD = 1, 2


class Control:
    """Requests to a daemon. All methods raise `TransportError`."""

    def __init__(self, socket: Path) -> None:
        """`socket` is the daemon's control socket."""
        self._socket = socket
        self._looker: Connection | None = None
        self._looking = asyncio.Lock()

    def close(self) -> None:
        """Close the connection that is kept."""
        if self._looker is not None:
            self._looker[1].close()

    async def look(self, request: p2pd_pb2.Request) -> p2pd_pb2.Response:
        """Ask for what the daemon knows at once, every second: on a connection that is kept."""
        async with self._looking:
            if self._looker is None:
                self._looker = await self._open()
            try:
                return await _exchange(*self._looker, request)
            except BaseException:
                # An answer that no caller waited for would be taken for the next one.
                self._looker[1].close()
                self._looker = None
                raise

    async def ask(self, request: p2pd_pb2.Request) -> p2pd_pb2.Response:
        """Send a request that may take long, like a dial, on a separate connection."""
        reader, writer = await self._open()
        try:
            return await _exchange(reader, writer, request)
        finally:
            writer.close()

    async def open_stream(self, peer_id: str, protocol: str) -> Connection:
        """A stream to a connected peer, and to no other: the daemon would dial the addresses that such a one claims."""
        peer = PeerID.from_base58(peer_id).to_bytes()
        connected = await self.look(p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS))
        if all(each.id != peer for each in connected.peers):
            raise TransportError("it is not connected")
        target = p2pd_pb2.StreamOpenRequest(peer=peer, proto=[protocol])
        reader, writer = await self._open()
        try:
            await write_pbmsg(writer, p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=target))
            await _read_response(reader)
        except asyncio.IncompleteReadError as error:
            writer.close()
            raise TransportError("the daemon closed the connection") from error
        except BaseException:
            writer.close()
            raise
        return reader, writer

    async def _open(self) -> Connection:
        try:
            return await asyncio.open_unix_connection(str(self._socket), limit=BUFFER_BYTES)
        except OSError as error:
            raise TransportError(f"the daemon's control socket cannot be opened: {error}") from error


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: p2pd_pb2.Request
) -> p2pd_pb2.Response:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await write_pbmsg(writer, request)
            return await _read_response(reader)
    except TimeoutError as error:
        raise TransportError(f"the daemon did not answer within {TIMEOUT_S:g} s") from error
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise TransportError("the daemon closed the connection") from error


async def _read_response(reader: asyncio.StreamReader) -> p2pd_pb2.Response:
    response = p2pd_pb2.Response()
    await read_pbmsg_safe(reader, response)
    if response.type == p2pd_pb2.Response.ERROR:
        raise TransportError(_last_line(response.error.msg))
    return response


def _last_line(message: str) -> str:
    # The message has one line per dial, after a line with their number.
    return message.strip().splitlines()[-1].strip(" *") if message.strip() else "no reason given"


@lru_cache(1_024)
def base58(peer_id: bytes) -> str:
    """A peer id as text."""
    return str(PeerID(peer_id).to_base58())


@lru_cache(4_096)
def readable(address: bytes) -> str | None:
    """A multiaddr as text; None for address types that the daemon supports and hivemind's parser does not."""
    try:
        return str(Multiaddr(address))
    except (ValueError, LookupError):
        logger.debug("cannot parse an address that the daemon reports: %s", address.hex())
        return None


def packed(address: str) -> bytes:
    """A multiaddr as the daemon reads it. Raises `ValueError` or `LookupError`."""
    # hivemind encodes the relay's id in an address as a CID, but the daemon reads only the older multihash.
    direct, separator, relay = address.partition("/p2p/")
    relay_id, _, rest = relay.partition("/")
    if not separator or rest != "p2p-circuit":
        return bytes(Multiaddr(address).to_bytes())
    multihash = PeerID.from_base58(relay_id).to_bytes()
    return bytes(Multiaddr(direct).to_bytes() + P2P_CODE + bytes([len(multihash)]) + multihash + CIRCUIT_CODE)


class IncomingStreams:
    """Serves one request per stream; the daemon connects to a socket of ours for each stream that a peer opens."""

    def __init__(self) -> None:
        """Serves nothing before `start`."""
        self.handlers: dict[str, StreamHandler] = {}
        """Handlers by protocol."""
        self.gatekeeper: Gatekeeper = Unlimited()
        self._server: asyncio.Server | None = None
        self._streams: set[asyncio.Task[object]] = set()
        self._runtime = AsyncioRuntime()

    async def start(self, socket: Path) -> None:
        """Accept the daemon's connections on `socket`."""
        self._server = await asyncio.start_unix_server(self._accept, str(socket), limit=BUFFER_BYTES)

    def stop(self) -> None:
        """Accept no more, and drop the streams being served."""
        if self._server is not None:
            self._server.close()
        for stream in self._streams:
            stream.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            await self._serve(reader, writer)
        except (TransportError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            logger.debug("dropped an incoming stream: %s", error)
        except asyncio.CancelledError:
            pass  # only `stop` cancels; asyncio of Python 3.11 prints a traceback for a stream's cancelled task
        finally:
            self._streams.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            info = p2pd_pb2.StreamInfo()
            await read_pbmsg_safe(reader, info)
        remote = base58(info.peer)
        gatekeeper = self.gatekeeper
        if not gatekeeper.admits(remote):
            return
        address = readable(info.addr) or ""
        stream = gatekeeper.admission.admit(remote, address, info.proto, writer.transport.abort)
        if stream is None:
            return
        try:
            if info.proto not in UNREAD:
                handler, channel = self.handlers[info.proto], _Channel(reader, writer)
                await answer_stream(stream, channel, info.proto, handler, gatekeeper.pace, self._runtime)
                stream.peer_turn()
                await _hung_up(reader)
        finally:
            gatekeeper.admission.release(stream)


class _Channel:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.read = reader.readexactly
        self.has_ended = reader.at_eof
        self._writer = writer

    async def send(self, frame: bytes) -> None:
        self._writer.write(frame)
        await self._writer.drain()


async def _hung_up(reader: asyncio.StreamReader) -> None:
    """Wait until the asker has read its answer and closed the stream. If this end closes first, the daemon resets the
    stream, which over QUIC loses all bytes in flight.
    """
    async with asyncio.timeout(STALL_TIMEOUT_S):
        await reader.read(1)


class CircuitLimits(NamedTuple):
    """A relay's limits per connection; 0 means unlimited."""

    seconds: int
    num_bytes: int


def read_limits(reply: bytes) -> CircuitLimits:
    """The limits in a relay's answer to RESERVE. Raises `ValueError` for a refusal or an invalid answer."""
    message = _fields(reply)
    if message.get(STATUS_FIELD) != OK:
        raise ValueError(f"the relay refused the reservation with status {message.get(STATUS_FIELD)!r}")
    limit = message.get(LIMIT_FIELD, b"")
    fields = _fields(limit) if isinstance(limit, bytes) else {}
    seconds, num_bytes = fields.get(DURATION_FIELD, 0), fields.get(DATA_FIELD, 0)
    if not isinstance(seconds, int) or not isinstance(num_bytes, int):
        raise ValueError("the relay's limits must be integers")
    return CircuitLimits(seconds, num_bytes)


def _fields(message: bytes) -> dict[int, int | bytes]:
    """The fields of a protobuf message by number; integers and byte strings only."""
    fields: dict[int, int | bytes] = {}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value, at = _varint(message, at)
        if tag & 7 == 0:
            fields[tag >> 3] = value
        elif tag & 7 == 2 and at + value <= len(message):
            fields[tag >> 3] = message[at : at + value]
            at += value
        else:
            raise ValueError(f"the relay's answer cannot be decoded: {message[:16].hex()}")
    return fields


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(message):
            raise ValueError("the relay's answer is truncated")
        value |= (message[at] & 0x7F) << shift
        at += 1
        if message[at - 1] < 0x80:
            return value, at
    raise ValueError("the relay's answer contains an integer of more than 64 bits")
