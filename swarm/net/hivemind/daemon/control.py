"""The daemon's control protocol: a request and its answer, in protobuf, on a connection to its control socket."""

from __future__ import annotations

import asyncio
import logging
from functools import lru_cache
from pathlib import Path

from swarm.errors import TransportError
from swarm.net.hivemind import light_import

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
                # An answer that nobody waited for would be taken for the next one.
                self._looker[1].close()
                self._looker = None
                raise

    async def ask(self, request: p2pd_pb2.Request) -> p2pd_pb2.Response:
        """Ask for what may take long, like a dial: on a connection of its own."""
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
