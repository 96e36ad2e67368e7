"""Serves direct links: a socket that listens from the first ticket on, and a thread for each link.

a connection ──▶ a slot, without a name ──secret──▶ a slot, as a peer ──▶ answered
                      │ ends when others need it         │ ends when the same peer opens another
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from swarm.extras.direct.tickets import SECRET_BYTES, Secrets, Ticket, serving_context
from swarm.net.addresses.dial import host_of
from swarm.net.addresses.listening import bound
from swarm.net.bandwidth import MIN_RATE_BYTES_PER_S
from swarm.net.guard import Counters
from swarm.protocols import StreamHandler

logger = logging.getLogger(__name__)

L = TypeVar("L")

MAX_LINKS = 16
"""Links at a time, unnamed ones included. None is admitted while as many are about to end."""
INTRODUCTION_S = 3.0
"""From the connection to the whole secret."""
PATIENCE_S = 5.0
"""How long a peer may take for a chunk, in addition to its time at the least rate."""
NOT_YET_S = 0.002
"""Pause before a handler whose next chunk is not ready is asked again."""
LOOK_EVERY_S = 1.0
"""How often the listening thread looks whether it is closed: not everywhere does that end a call."""
AGAIN_S = 0.1
"""Pause after a connection could not be accepted."""


class LinkSlots(Generic[L]):
    """The links that have a slot. Not thread-safe."""

    def __init__(self, end: Callable[[L], None]) -> None:
        """`end` makes the thread of a link stop, which then calls `release`."""
        self._end = end
        self._unnamed: dict[L, str] = {}
        """Host by link without a secret yet, oldest first."""
        self._peers: dict[str, L] = {}
        """Link by peer."""
        self._ending: set[L] = set()

    def admit(self, link: L, host: str) -> bool:
        """Whether a new link gets a slot. The host with the most unnamed links loses its oldest for it."""
        if len(self._ending) >= MAX_LINKS:
            return False
        if len(self._unnamed) + len(self._peers) >= MAX_LINKS:
            if not self._unnamed:
                return False
            crowds = Counter(self._unnamed.values())
            self._part_with(max(self._unnamed, key=lambda each: crowds[self._unnamed[each]]))
        self._unnamed[link] = host
        return True

    def introduce(self, link: L, peer_id: str) -> bool:
        """Whether the link, which has shown the secret of this peer, still has its slot. The peer's earlier one ends:
        no peer needs two."""
        if self._unnamed.pop(link, None) is None:
            return False
        if (earlier := self._peers.pop(peer_id, None)) is not None:
            self._part_with(earlier)
        self._peers[peer_id] = link
        return True

    def release(self, link: L) -> None:
        """A link has ended."""
        self._unnamed.pop(link, None)
        self._peers = {peer_id: each for peer_id, each in self._peers.items() if each is not link}
        self._ending.discard(link)

    def end_all(self) -> None:
        """End every link."""
        for link in (*self._unnamed, *self._peers.values()):
            self._part_with(link)

    def _part_with(self, link: L) -> None:
        self._unnamed.pop(link, None)
        self._ending.add(link)
        self._end(link)


class DirectServer:
    """Gives out tickets, and answers the requests of those who come with one."""

    def __init__(
        self,
        handler: StreamHandler,
        listen: Sequence[str],
        port: int,
        counters: Counters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`handler` is called on the threads of links. It listens where the node does, the first of `listen`, but on
        this `port`; 0: any free one.
        """
        self._handler = handler
        self._address = next(filter(None, (_with_port(address, port) for address in listen)), None)
        self._counters = counters
        self._clock = clock
        self._secrets = Secrets(clock)
        self._lock = threading.Lock()
        """Guards all below."""
        self._slots: LinkSlots[ssl.SSLSocket] = LinkSlots(_shut)
        self._listening: socket.socket | None = None
        self._certificate = b""
        self._closed = False

    def ticket(self, peer_id: str, request: bytes) -> Ticket:
        """A ticket for a peer's request. Raises `LookupError` if there are none."""
        with self._lock:
            if self._closed:
                raise LookupError("this node has stopped serving direct links")
            listening = self._listening or self._open()
        return Ticket(listening.getsockname()[1], self._certificate, self._secrets.issue(peer_id, request))

    def close(self) -> None:
        """Close the socket and all links; their threads end by themselves."""
        with self._lock:
            self._closed = True
            self._slots.end_all()
            if self._listening is not None:
                _shut(self._listening)

    def _open(self) -> socket.socket:
        address = self._address
        if address is None:
            raise LookupError("this node listens nowhere for direct links")
        try:
            context, self._certificate = serving_context()
            listening = bound(address)
            listening.settimeout(LOOK_EVERY_S)
        except OSError as error:
            self._address = None  # said once
            logger.warning("no direct links: %s cannot be listened on: %s", "/".join(address), error)
            raise LookupError("this node cannot listen for direct links") from error
        self._listening = listening
        threading.Thread(target=self._accept, args=(listening, context), name="swarm-direct", daemon=True).start()
        return listening

    def _accept(self, listening: socket.socket, context: ssl.SSLContext) -> None:
        with listening:
            while not self._closed:
                try:
                    plain, (host, *_) = listening.accept()
                except TimeoutError:
                    continue
                except OSError as error:
                    logger.debug("a direct link could not be accepted: %s", error)
                    time.sleep(AGAIN_S)  # for example without a descriptor left
                    continue
                if not self._begin(plain, host, context):
                    self._counters.add("direct_turned_away")
                    plain.close()

    def _begin(self, plain: socket.socket, host: str, context: ssl.SSLContext) -> bool:
        """Answer a new connection on a new thread, if there is room."""
        link = self._admit(plain, host, context)
        if link is None:
            return False
        try:
            threading.Thread(target=self._serve, args=(link,), name="swarm-direct", daemon=True).start()
        except RuntimeError as error:  # this process may have no more threads
            logger.debug("a direct link was turned away: %s", error)
            self._release(link)
            return False
        return True

    def _admit(self, plain: socket.socket, host: str, context: ssl.SSLContext) -> ssl.SSLSocket | None:
        """The link of a new connection; None while no ticket is out, or without a slot."""
        with self._lock:
            if self._closed or not self._secrets.any():
                return None
            try:
                link = context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
            except OSError:
                return None
            if self._slots.admit(link, host_of(f"/ip/{host}")):
                return link
        link.close()
        return None

    def _serve(self, link: ssl.SSLSocket) -> None:
        try:
            self._answer(link)
        except Exception as error:
            # Whatever a peer provokes ends its own link, as `Guard` sees to on the network thread.
            self._counters.add("direct_broken_off")
            logger.debug("a direct link has ended: %r", error)
        finally:
            self._release(link)

    def _release(self, link: ssl.SSLSocket) -> None:
        with self._lock:
            self._slots.release(link)
        link.close()

    def _answer(self, link: ssl.SSLSocket) -> None:
        """Answer the request of one link. Raises what the handler raises, and `OSError`."""
        until = self._clock() + INTRODUCTION_S
        link.settimeout(INTRODUCTION_S)
        link.do_handshake()
        errand = self._secrets.redeem(self._read_secret(link, until))
        if errand is None:
            raise LookupError("this secret is not valid, or not any more")
        with self._lock:
            if not self._slots.introduce(link, errand.peer_id):
                raise LookupError("others needed the slot meanwhile")
        self._counters.add("direct_links")
        for chunk in self._handler(errand.peer_id, errand.request):
            if isinstance(chunk, bytes):
                self._send(link, chunk)
            elif _says_something(link, NOT_YET_S):
                return  # hung up

    def _read_secret(self, link: ssl.SSLSocket, until: float) -> bytes:
        """Raises `OSError`."""
        secret = b""
        while len(secret) < SECRET_BYTES:
            link.settimeout(self._seconds_until(until))
            piece = link.recv(SECRET_BYTES - len(secret))
            if not piece:
                raise ConnectionError("the peer hung up without a secret")
            secret += piece
        return secret

    def _send(self, link: ssl.SSLSocket, chunk: bytes) -> None:
        """Raises `OSError`, also for a peer that takes the chunk too slowly."""
        until = self._clock() + PATIENCE_S + len(chunk) / MIN_RATE_BYTES_PER_S
        rest = memoryview(chunk)
        while rest:
            link.settimeout(self._seconds_until(until))
            rest = rest[link.send(rest) :]

    def _seconds_until(self, until: float) -> float:
        """Raises `TimeoutError`."""
        if (left_s := until - self._clock()) <= 0:
            raise TimeoutError("the peer is too slow")
        return left_s


def _with_port(listen: str, port: int) -> list[str] | None:
    """The parts of a TCP multiaddr with another port; None for a name, and for what no socket can be bound to."""
    parts = listen.split("/")
    return [*parts[:3], "tcp", str(port)] if len(parts) > 3 and parts[1] in ("ip4", "ip6") else None


def _says_something(link: socket.socket, timeout_s: float) -> bool:
    """Whether bytes or an end arrive: a peer says nothing after its request."""
    poll = select.poll()
    poll.register(link, select.POLLIN)
    return bool(poll.poll(1_000 * timeout_s))


def _shut(link: socket.socket) -> None:
    """End all calls on a socket, on whatever threads."""
    with suppress(OSError):
        socket.socket.shutdown(link, socket.SHUT_RDWR)  # not TLS's own, which would go on without encryption
