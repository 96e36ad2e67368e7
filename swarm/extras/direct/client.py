"""Opens direct links, where a peer offers them and can be reached."""

from __future__ import annotations

import logging
import select
import socket
import ssl
import time
from collections.abc import Callable, Generator
from hmac import compare_digest

import msgspec

from swarm.errors import PeerUnreachable, TransportError
from swarm.extras.direct.tickets import Ticket, asking_context, digest_of
from swarm.net.addresses.dial import Backoff
from swarm.net.addresses.nat import relay_of
from swarm.net.guard import Counters
from swarm.protocols import Transport

logger = logging.getLogger(__name__)

CONNECT_S = 1.0
"""For the ticket, and for each attempt to connect: the network library is there if it takes longer."""
FIRST_PAUSE_S = 5.0
"""Before a peer that could not be reached is asked for a ticket again; doubles up to a minute."""
PIECE_BYTES = 2**18
MAX_ADDRESSES = 2
"""Addresses tried: those at which the peer's connections are seen here."""


class DirectClient:
    """Bytes of peers that offer direct links."""

    def __init__(
        self, transport: Transport, protocol: str, counters: Counters, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Peers answer `protocol` with tickets."""
        self._transport = transport
        self._protocol = protocol
        self._counters = counters
        self._clock = clock
        self._context = asking_context()
        self._backoff = Backoff(FIRST_PAUSE_S)

    def stream(
        self, peer_id: str, request: bytes, timeout_s: float, max_bytes: int
    ) -> Generator[bytes, None, None] | None:
        """The bytes of a peer's answer, at most `max_bytes`; None if there is no direct link to it now.

        As `Transport.stream`: `timeout_s` bounds the time between two pieces, closing the iterator closes the link, and
        it raises `PeerUnreachable`.
        """
        hosts = self._hosts(peer_id)
        if not hosts or self._backoff.wait_s(peer_id, self._clock()) > 0:
            return None
        try:
            link = self._open(peer_id, hosts, request)
        except (OSError, ValueError, TransportError, msgspec.MsgspecError) as error:
            logger.debug("no direct link to %s: %s", peer_id, error)
            self._failed(peer_id)
            return None
        return self._pieces(peer_id, link, timeout_s, max_bytes)

    def _hosts(self, peer_id: str) -> list[str]:
        """IPs at which this node sees the peer itself: a reported address may be any machine's."""
        seen = (address for address in self._transport.observed(peer_id) if relay_of(address) is None)
        parts = [address.split("/") for address in seen]
        return list(dict.fromkeys(each[2] for each in parts if len(each) > 2 and each[1] in ("ip4", "ip6")))

    def _open(self, peer_id: str, hosts: list[str], request: bytes) -> ssl.SSLSocket:
        """A link on which the request is answered. Raises what the network and the decoder raise."""
        answer = self._transport.request(peer_id, self._protocol, request, CONNECT_S)
        ticket = msgspec.msgpack.decode(answer, type=Ticket)
        link = self._connect(hosts[:MAX_ADDRESSES], ticket)
        link.sendall(ticket.secret)
        return link

    def _connect(self, hosts: list[str], ticket: Ticket) -> ssl.SSLSocket:
        """A link to the server of the ticket. Raises `OSError`."""
        problem: OSError = ConnectionError("the peer is seen nowhere")
        for host in hosts:
            try:
                plain = socket.create_connection((host, ticket.port), CONNECT_S)
            except OSError as error:
                problem = error
                continue
            return self._secured(plain, ticket)
        raise problem

    def _secured(self, plain: socket.socket, ticket: Ticket) -> ssl.SSLSocket:
        link = self._context.wrap_socket(plain, do_handshake_on_connect=False)
        try:
            link.do_handshake()
            shown = link.getpeercert(binary_form=True) or b""
            if not compare_digest(digest_of(shown), ticket.certificate):
                raise ConnectionError("another certificate than the peer's")
        except BaseException:
            link.close()
            raise
        return link

    def _pieces(
        self, peer_id: str, link: ssl.SSLSocket, timeout_s: float, max_bytes: int
    ) -> Generator[bytes, None, None]:
        num_left, buffer = max_bytes, bytearray(PIECE_BYTES)
        link.settimeout(timeout_s)
        with link:
            while num_left > 0:
                try:
                    num_bytes = _receive(link, memoryview(buffer)[:num_left])
                except OSError as error:
                    self._failed(peer_id)
                    raise PeerUnreachable(f"the direct link to {peer_id} broke: {error}") from error
                if num_bytes == 0:
                    self._failed(peer_id)
                    return
                if num_left == max_bytes:
                    self._backoff.succeeded(peer_id)  # should it end early, the next pause is the first
                num_left -= num_bytes
                yield bytes(memoryview(buffer)[:num_bytes])

    def _failed(self, peer_id: str) -> None:
        """Leave the peer to the network for a while: something between the two may end every link before a chunk is
        whole."""
        self._counters.add("direct_failures")
        self._backoff.failed(peer_id, self._clock())


def _receive(link: ssl.SSLSocket, room: memoryview) -> int:
    """Fill `room` with what is there, at least one byte; 0 at the end. Raises `OSError`."""
    num_bytes = link.recv_into(room)
    poll = select.poll()
    poll.register(link, select.POLLIN)
    while 0 < num_bytes < len(room) and (link.pending() or poll.poll(0)):
        more = link.recv_into(room[num_bytes:])
        if more == 0:
            break
        num_bytes += more
    return num_bytes
