"""A py-libp2p host, configured for use in a swarm; py-libp2p's specifics are here.

Importing this imports libp2p and trio, which cannot share a process with hivemind (both register the same protobuf
symbols). Import it only if this network was selected.

Defaults of py-libp2p that are disabled here: it offers connections without authentication or without pings, dials on
its own, and ends the process when a peer sends bytes that a parser does not expect. It reads protocol names of any
length, also before any handshake; asks every peer for a description of up to a megabyte, keeps it, and dials what it
says; counts a connection as open after it has ended; and forgets no stream that the peer leaves half closed. `muxer`
has the limits of a connection, `slots` those of their number; docs/extras/libp2p.md lists what each default costs.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from ipaddress import ip_address

import libp2p.protocol_muxer.multiselect_communicator as communicator_module
import psutil
import trio
from libp2p import new_host
from libp2p.abc import INetConn
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_new_x25519_key_pair
from libp2p.exceptions import ParseError
from libp2p.host.basic_host import BasicHost, _IdentifyNotifee
from libp2p.host.ping import ID as PING_PROTOCOL_ID, handle_ping
from libp2p.identity.identify_push.identify_push import ID_PUSH as IDENTIFY_PUSH_PROTOCOL_ID
from libp2p.io.abc import Reader
from libp2p.io.trio import TrioTCPStream
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.stream.net_stream import NetStream
from libp2p.network.swarm import Swarm
from libp2p.peer.envelope import Envelope
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_PROTOCOL_ID, Transport as NoiseTransport
from libp2p.utils.varint import read_varint_prefixed_bytes_limited
from multiaddr import Multiaddr

from swarm.errors import PeerUnreachable, TransportError
from swarm.extras.libp2p.muxer import BoundedMuxers, Holdings
from swarm.extras.libp2p.slots import MAX_SLOTS, ConnectionSlots
from swarm.net.addresses.dial import host_of
from swarm.net.addresses.listening import check_free
from swarm.net.addresses.nat import CIRCUIT
from swarm.net.guard import Counters
from swarm.net.membership import dialling
from swarm.net.records.envelope import (
    MAX_REPLY_BYTES,
    encode_request,
    joined,
    read_answer,
)
from swarm.net.services.streams import Gatekeeper, Stream, Unlimited, answer_stream
from swarm.protocols import StreamHandler

logger = logging.getLogger(__name__)

LOOK_UP_TIMEOUT_S = 5.0
MAX_CONNECTIONS = 2 * MAX_SLOTS
"""Incoming ones and those that this node dials, which are fewer."""
UPGRADE_TIMEOUT_S = 10.0
"""For encryption and multiplexing of a new connection."""
MAX_NAME_BYTES = 1_024
"""Length of a protocol's name, or a list of names, in negotiations."""
LINGER_S = 10.0
"""Time in which the other side has to close a stream that has been served."""
MAX_OPEN_STREAMS_PER_PEER = 128
"""Streams with any protocol or with none yet."""
MAX_BYTES = 2**30
DIAL_TIMEOUT_S = 10.0
"""For one address."""
DIAL_ALL_S = 0.9 * dialling.DIAL_TIMEOUT_S
"""For all addresses of a peer, so that each has had its turn when the dial ends."""
CLOSE_TIMEOUT_S = 1.0
ANYWHERE = ("0.0.0.0", "::")
RawHandler = Callable[[NetStream], Awaitable[None]]
InboundHandler = Callable[[TrioTCPStream, Multiaddr], Awaitable[None]]


class TrioSignal:
    """A reusable event with a timeout."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        """Wake the waiters; later waits return at once until `clear`."""
        self._event.set()

    def clear(self) -> None:
        """Reset: the next wait blocks until another `set`."""
        if self._event.is_set():
            self._event = trio.Event()

    async def wait_for(self, timeout_s: float) -> bool:
        """Wait for `set`; whether it happened in time."""
        event = self._event
        with trio.move_on_after(timeout_s):
            await event.wait()
        return bool(event.is_set())


class TrioRuntime:
    """`AsyncRuntime` in trio."""

    def signal(self) -> TrioSignal:
        """A new signal, cleared."""
        return TrioSignal()

    @asynccontextmanager
    async def timeout(self, timeout_s: float) -> AsyncIterator[None]:
        """A time limit. Raises `TimeoutError`."""
        try:
            with trio.fail_after(timeout_s):
                yield
        except trio.TooSlowError as error:
            raise TimeoutError from error

    async def sleep(self, duration_s: float) -> None:
        """Sleep."""
        await trio.sleep(duration_s)

    async def look_up(self, host: str) -> list[str]:
        """The IPs of a host name; empty if it cannot be resolved."""
        try:
            with trio.fail_after(LOOK_UP_TIMEOUT_S):
                found = await trio.socket.getaddrinfo(host, None)
        except (OSError, ValueError, trio.TooSlowError):
            return []
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Host:
    """A running host; create it with `open_host`."""

    uses_relays = dials_claims = False

    def __init__(self, host: BasicHost, counters: Counters, holdings: Holdings, slots: ConnectionSlots) -> None:
        """Wrap a running host; use `open_host` instead."""
        self._host = host
        self._runtime = TrioRuntime()
        self._counters = counters
        self.holdings = holdings
        """Memory of the connections."""
        self.slots = slots
        """The incoming connections."""
        self.gatekeeper: Gatekeeper = Unlimited()

    @property
    def peer_id(self) -> str:
        """Peer id of the host's key."""
        return str(self._host.get_id())

    def listening(self) -> tuple[str, ...]:
        """Listen addresses with their actual ports; wildcards are kept."""
        return tuple(str(address) for address in self._host.get_transport_addrs())

    def connected(self) -> frozenset[str]:
        """Peer ids with an open connection."""
        return frozenset(str(peer) for peer in self._host.get_connected_peers())

    def remote_addresses(self) -> dict[str, tuple[str, ...]]:
        """Remote ends of the connections, by connected peer."""
        connections = self._host.get_network().get_connections_map()
        return {str(peer): tuple(filter(None, map(_remote_address, each))) for peer, each in connections.items()}

    def unanswered(self) -> frozenset[str]:
        """Connected peers that owe an answer to the last ping on every connection.

        py-libp2p pings each half minute, and only measures the time.
        """
        connections = self._host.get_network().get_connections_map()
        return frozenset(
            str(peer)
            for peer, each in connections.items()
            if each and not any(connection.muxed_conn._ping_event.is_set() for connection in each)
        )

    def can_dial(self, address: str) -> bool:
        """See `Dialler`. py-libp2p, as set up here, supports neither QUIC nor relays."""
        return "/tcp/" in address and CIRCUIT not in address

    async def connect(self, peer_id: str, addresses: Sequence[str]) -> None:
        """Dial a peer's addresses in turn until one answers. Raises `PeerUnreachable` with all reasons."""
        problems: list[str] = []
        limit_s = min(DIAL_TIMEOUT_S, DIAL_ALL_S / max(1, len(addresses)))
        for address in addresses:
            try:
                with trio.fail_after(limit_s):
                    # Not `host.connect`: it tries one TCP address per peer, and blocks the peer for a minute.
                    await self._host.get_network().dial_addr(Multiaddr(address), ID.from_base58(peer_id))
                return
            except Exception as error:
                # Untrusted peers choose the addresses, and any layer of py-libp2p may raise.
                problems.append(f"{address}: {_reason(error)}")
        raise PeerUnreachable(", ".join(problems) or f"no address of {peer_id} is known")

    async def drop(self, peer_id: str) -> None:
        """Close every connection to a peer."""
        # Not `host.disconnect`: it forgets, without closing it, a connection that the peer makes meanwhile.
        for connection in self._host.get_network().get_connections(ID.from_base58(peer_id)):
            try:
                # The socket first: the goodbye would wait behind what a peer does not read.
                with suppress(Exception), trio.move_on_after(CLOSE_TIMEOUT_S):
                    await connection.muxed_conn.secured_conn.close()
                # Not limited: one that is interrupted counts as connected for ever.
                await connection.close()
            except Exception:
                # The peer may already be gone, in any state.
                self._counters.add("stray_errors")
                logger.debug("could not disconnect from %s", peer_id, exc_info=True)

    async def call(
        self, peer_id: str, protocol: str, payload: bytes, timeout_s: float, max_bytes: int = MAX_REPLY_BYTES
    ) -> bytes:
        """The whole answer of a connected peer to one request, within `timeout_s`. Raises `PeerUnreachable`."""
        try:
            with trio.fail_after(timeout_s):
                return await joined(self.stream(peer_id, protocol, payload, timeout_s, max_bytes))
        except trio.TooSlowError as error:
            raise PeerUnreachable(f"{peer_id} did not answer {protocol} within {timeout_s:g} s") from error

    async def stream(
        self, peer_id: str, protocol: str, payload: bytes, timeout_s: float, max_bytes: int
    ) -> AsyncGenerator[bytes, None]:
        """Chunks of a connected peer's answer; `timeout_s` limits each silence. Raises `PeerUnreachable`."""
        if peer_id not in self.connected():
            raise PeerUnreachable(f"{peer_id} is not connected")
        stream: NetStream | None = None

        async def read(count: int) -> bytes:
            with trio.fail_after(timeout_s):
                return await _read_exactly(opened, count)

        try:
            with trio.fail_after(timeout_s):
                stream = opened = await self._host.new_stream(ID.from_base58(peer_id), [protocol])
                await opened.write(encode_request(payload))
            async with aclosing(read_answer(read, max_bytes)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except trio.TooSlowError as error:
            raise PeerUnreachable(f"{peer_id} did not answer {protocol} within {timeout_s:g} s") from error
        except Exception as error:
            # Any error of the peer, the connection or py-libp2p's layers means that there is no answer.
            raise PeerUnreachable(f"{peer_id} did not answer {protocol}: {_reason(error)}") from error
        finally:
            if stream is not None:
                await _abandon(stream)

    def answer(self, protocol: str, handler: StreamHandler) -> None:
        """Answer other peers' requests for `protocol`, chunk by chunk."""

        async def reply(stream: NetStream) -> None:
            remote, gatekeeper = str(stream.muxed_conn.peer_id), self.gatekeeper
            with trio.CancelScope() as scope:
                admitted: Stream | None = None
                if gatekeeper.admits(remote):
                    address = _remote_address(stream) or ""
                    admitted = gatekeeper.admission.admit(remote, address, protocol, scope.cancel)
                if admitted is not None:
                    try:
                        channel = _Channel(stream)
                        await answer_stream(admitted, channel, protocol, handler, gatekeeper.pace, self._runtime)
                        await stream.close()
                        return
                    finally:
                        gatekeeper.admission.release(admitted)
            await _abandon(stream)

        self._host.set_stream_handler(protocol, reply)


class _Channel:
    def __init__(self, stream: NetStream) -> None:
        self.read = partial(_read_exactly, stream)
        self.send = stream.write

    def has_ended(self) -> bool:
        """The stream does not say."""
        return False


def _remote_address(connection: INetConn | NetStream) -> str | None:
    try:
        found = connection.muxed_conn.get_remote_address()
        host = ip_address(found[0]) if found else None
    except Exception:
        # A closing connection may raise in any of its layers.
        return None
    return f"/ip{host.version}/{host}/tcp/{found[1]}" if host else None


@asynccontextmanager
async def open_host(
    seed: bytes, listen: Sequence[str], announce: Sequence[str], counters: Counters, max_bytes: int = MAX_BYTES
) -> AsyncIterator[Host]:
    """A listening host, whose connections hold at most about `max_bytes` in memory together.

    Raises `TransportError` if it cannot listen.
    """
    quiet_libp2p()
    for address in listen:
        _check_form(address)
        check_free(address)
    holdings, slots = Holdings(max_bytes, counters), ConnectionSlots()
    host = _make_host(seed, announce, holdings)
    host.get_network()._handle_inbound_connection = _let_in(host.get_network(), slots, counters)
    # All stream handlers run inside this guard, including py-libp2p's own: an error in one would end the host.
    host.get_network().set_stream_handler(_guarded(host._swarm_stream_handler, counters))
    async with host.run(listen_addrs=[Multiaddr(address) for address in listen]):
        try:
            if len(host.get_transport_addrs()) < len(listen):
                raise TransportError(f"cannot listen on all of {', '.join(listen)}; choose addresses of this machine")
            yield Host(host, counters, holdings, slots)
        finally:
            # Leaving `run` alone lets connections linger, so that peers think this node is still there.
            with trio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
                await host.close()


def quiet_libp2p() -> None:
    """Silence py-libp2p's logs: they report every lost peer at every level, and losses are counted here."""
    for name in ("libp2p", "multiaddr", "async_service"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def interfaces(address: str) -> tuple[str, ...]:
    """A listen address as others can dial it: a wildcard becomes one address per local interface."""
    parts = address.split("/")
    if len(parts) < 5 or parts[2] not in ANYWHERE:
        return (address,)
    family = socket.AF_INET if parts[1] == "ip4" else socket.AF_INET6
    found = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries if entry.family == family}
    hosts = sorted(host for host in found if "%" not in host and not ip_address(host).is_link_local)
    return tuple("/".join([*parts[:2], host, *parts[3:]]) for host in hosts)


class OwnPeerStore(PeerStore):  # type: ignore[misc]
    """Holds this host's own key, and nothing that others say: py-libp2p would keep megabytes of it, and dial it."""

    def add_addrs(self, peer_id: ID, addrs: Sequence[Multiaddr], ttl: int = 0) -> None:
        """Forget a peer's addresses; `Dialling` knows them."""

    def consume_peer_record(self, envelope: Envelope, ttl: int) -> bool:
        """Forget a peer's signed record."""
        return True


async def _read_name(reader: Reader) -> bytes:
    """A line of a negotiation. Raises errors that py-libp2p's own reader raises, too."""
    line = bytes(await read_varint_prefixed_bytes_limited(reader, MAX_NAME_BYTES))
    if not line.endswith(b"\n"):
        raise ParseError("a line of a negotiation has no end")
    return line[:-1]


def _make_host(seed: bytes, announce: Sequence[str], holdings: Holdings) -> BasicHost:
    communicator_module.read_delim = _read_name
    key_pair = create_new_key_pair(seed)
    noise = NoiseTransport(key_pair, noise_privkey=create_new_x25519_key_pair().private_key)
    host = new_host(
        key_pair=key_pair,
        sec_opt={NOISE_PROTOCOL_ID: noise},
        peerstore_opt=OwnPeerStore(),
        connection_config=ConnectionConfig(
            max_connections=MAX_CONNECTIONS,
            max_connections_per_peer=MAX_CONNECTIONS,
            high_watermark=MAX_CONNECTIONS,
            min_connections=0,
            low_watermark=0,
            dial_timeout=DIAL_TIMEOUT_S,
            inbound_upgrade_timeout=UPGRADE_TIMEOUT_S,
        ),
        announce_addrs=[Multiaddr(address) for address in announce] or None,
        disable_identify_address_discovery=True,
    )
    network = host.get_network()
    network.upgrader.muxer_multistream = BoundedMuxers(holdings)
    network.retry_config = RetryConfig(max_retries=0)
    # It has one limit of streams for all peers together, and halves it when it is reached.
    network.set_resource_manager(None)
    # Peers may ask who this host is, which the go daemon does; what they say of themselves is not asked for.
    network.notifees = [each for each in network.notifees if not isinstance(each, _IdentifyNotifee)]
    network.auto_connector.record_disconnect = lambda peer_id: None
    host.remove_stream_handler(IDENTIFY_PUSH_PROTOCOL_ID)
    host.set_stream_handler(PING_PROTOCOL_ID, handle_ping)
    return host


def _let_in(network: Swarm, slots: ConnectionSlots, counters: Counters) -> InboundHandler:
    """Handles an incoming connection from its first byte to its end.

    py-libp2p's handler ends with the host, and holds a slot of its limiter until then.
    """

    async def handle(stream: TrioTCPStream, listener: Multiaddr) -> None:
        # The socket is closed when this returns; then the task that reads it ends the rest.
        with trio.CancelScope() as scope:
            slot = slots.take(_address_of(stream), scope.cancel)
            if slot is None:
                counters.add("crowded_connections")
                return
            try:
                connection = await network.upgrade_inbound_raw_conn(RawConnection(stream, False), listener)
                slots.name(slot, str(connection.peer_id))
                await connection.event_closed.wait()
            finally:
                slots.release(slot)

    return handle


def _address_of(stream: TrioTCPStream) -> str:
    """The machine or network at the other end. Also notes it for py-libp2p, which can read only IPv4 addresses."""
    host, port = stream.stream.socket.getpeername()[:2]
    found = ip_address(host.partition("%")[0])
    mapped = found.ipv4_mapped if found.version == 6 else None
    stream._cached_remote_address = (str(mapped or found), port)
    return host_of(f"/ip/{mapped or found}")


def _guarded(handler: RawHandler, counters: Counters) -> RawHandler:
    open_streams: Counter[str] = Counter()

    async def guarded(stream: NetStream) -> None:
        remote = str(stream.muxed_conn.peer_id)
        if open_streams[remote] >= MAX_OPEN_STREAMS_PER_PEER:
            counters.add("crowded_streams")
            await _abandon(stream)
            return
        open_streams[remote] += 1
        try:
            await handler(stream)
            await _finish(stream)
        except Exception:
            # Untrusted input and disconnections may raise in any of py-libp2p's protocols.
            counters.add("bad_streams")
            logger.debug("dropped a stream after an error", exc_info=True)
            await _abandon(stream)
        finally:
            open_streams[remote] -= 1
            if not open_streams[remote]:
                del open_streams[remote]

    return guarded


async def _finish(stream: NetStream) -> None:
    """Give the other side its time to close a stream that was served, or end it when more arrives."""
    with suppress(Exception), trio.move_on_after(LINGER_S):
        await stream.read(1)
    await _abandon(stream)


async def _abandon(stream: NetStream) -> None:
    with trio.move_on_after(CLOSE_TIMEOUT_S, shield=True), suppress(Exception):
        await stream.reset()
    stream.muxed_conn.forget(stream.muxed_stream)


async def _read_exactly(stream: NetStream, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        chunk = await stream.read(count - len(received))
        if not chunk:
            raise PeerUnreachable("the peer closed the stream")
        received += chunk
    return bytes(received)


def _check_form(address: str) -> None:
    parts = address.split("/")
    if len(parts) < 5 or parts[1] not in ("ip4", "ip6") or parts[3] != "tcp" or not parts[4].isdecimal():
        raise TransportError(
            f"the libp2p transport listens on /ip4/HOST/tcp/PORT or /ip6/HOST/tcp/PORT, got {address!r}"
        )


def _reason(error: BaseException) -> str:
    """The root cause of an error that passed through many layers."""
    while True:
        inner = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if isinstance(error, BaseExceptionGroup):
            inner = error.exceptions[0]
        if inner is None:
            break
        error = inner
    if isinstance(error, trio.Cancelled | trio.TooSlowError):
        return "no answer in time"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__
