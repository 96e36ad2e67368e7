"""A stranger in the swarm: an identity with its own daemon that follows no rules.

It sends arbitrary bytes: in its feed, in requests, on raw streams, to hivemind's DHT. Every call blocks for a bounded
time; an event loop in a separate thread executes them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID

from swarm.net.addresses.dial import by_peer
from swarm.net.hivemind.daemon import DIAL_ONLY, Daemon
from swarm.net.records.envelope import Kind
from swarm.net.records.identity import Identity
from swarm.net.records.wire import Record, open_manifest, seal
from swarm.net.services.requests import MANIFEST_PROTOCOL
from swarm.types import RunManifest
from tests.attacks.own_feed import OwnFeed

T = TypeVar("T")
LISTEN = ("/ip4/127.0.0.1/tcp/0",)
UNBOUNDED = (*DIAL_ONLY, f"-persistentConnMaxMsgSize={2**22}")
"""Arguments of a daemon that forwards larger requests than ours."""
CALL_TIMEOUT_S = 60.0


class RawStream:
    """A libp2p stream to a victim, without framing."""

    def __init__(self, stranger: Stranger, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Of `stranger`, open."""
        self._stranger = stranger
        self._reader = reader
        self._writer = writer

    def send(self, content: bytes) -> None:
        """Write raw bytes. Raises `ConnectionError` once the victim has closed the stream."""

        async def send() -> None:
            self._writer.write(content)
            await self._writer.drain()

        self._stranger.run(send())

    def read(self, most: int = 2**16, timeout_s: float = 10.0) -> bytes:
        """The next bytes; empty when the victim has closed the stream. Raises `TimeoutError`."""

        async def read() -> bytes:
            async with asyncio.timeout(timeout_s):
                with suppress(ConnectionError):
                    return await self._reader.read(most)
                return b""

        return self._stranger.run(read())

    def close(self) -> None:
        """Close the stream."""

        async def close() -> None:
            self._writer.close()

        self._stranger.run(close())


class Stranger:
    """One identity on the network; make one with `Stranger(folder, name)`, and `close` it."""

    def __init__(
        self, folder: Path, name: str = "stranger", listen: tuple[str, ...] = LISTEN, announce: tuple[str, ...] = ()
    ) -> None:
        """Start a daemon, which claims to be at the addresses of `announce`; the identity's key is in `folder`.

        Raises `TransportError`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.identity = Identity.load_or_create(folder / f"{name}.key")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"stranger-{name}", daemon=True)
        self._thread.start()
        start = Daemon.start(
            listen=listen, announce=announce, identity=self.identity.path, nat=UNBOUNDED, timeout_s=60.0
        )
        self.daemon = self.run(start)
        self.heard: list[tuple[str, bytes]] = []
        """(peer, record) of all that the feeds which it reads contained at once."""
        self.feed = OwnFeed(self.daemon)
        self._background: list[asyncio.Task[None]] = []
        self._dht: DHTProtocol | None = None

    @property
    def peer_id(self) -> str:
        """Its peer id."""
        return self.identity.peer_id

    def run(self, coroutine: Coroutine[object, object, T], timeout_s: float = CALL_TIMEOUT_S) -> T:
        """Run a coroutine on the stranger's loop, for concurrent attacks."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout_s)

    def connect(self, *addresses: str) -> tuple[str, ...]:
        """Dial victims under full multiaddrs; their peer ids. Raises `PeerUnreachable`."""
        victims = by_peer(addresses)
        for peer_id, theirs in victims.items():
            self.run(self.daemon.connect(peer_id, theirs))
        return tuple(victims)

    def connected(self) -> frozenset[str]:
        """Peer ids of its connections."""
        return self.run(self.daemon.connected())

    def manifest(self, victim: str) -> RunManifest:
        """The victim's run. Raises `PeerUnreachable`."""
        return open_manifest(self.request(victim, MANIFEST_PROTOCOL, b""))

    def seal(self, run_id: str, kind: Kind, record: Record) -> bytes:
        """A record in a correct envelope, with any content."""
        return seal(self.identity, run_id, kind, record)

    def follow(self, run_id: str) -> None:
        """Take part in a run as its members see it, and read the feeds of those connected now."""
        self.run(self.feed.take_part(run_id))
        for peer_id in self.connected():
            self.begin(self.feed.read(peer_id, lambda sender, record: self.heard.append((sender, record))))

    def begin(self, coroutine: Coroutine[object, object, None]) -> None:
        """Run a coroutine until the stranger leaves."""

        async def begin() -> None:
            self._background.append(asyncio.create_task(coroutine))

        self.run(begin())

    def publish(self, run_id: str, record: bytes) -> None:
        """Put bytes into the stranger's feed, for whoever follows it."""

        async def publish() -> None:
            await self.feed.take_part(run_id)
            self.feed.publish(record)

        self.run(publish())

    def request(self, victim: str, protocol: str, payload: bytes, timeout_s: float = 10.0) -> bytes:
        """The complete response to one request. Raises `PeerUnreachable`."""
        return self.run(self.daemon.call(victim, protocol, payload, timeout_s))

    def serve(self, protocol: str, answer: Callable[[str, bytes], bytes]) -> None:
        """Answer others' requests, in place of an earlier answer to them."""
        if protocol in self.daemon.incoming.handlers:
            self.daemon.incoming.handlers[protocol] = lambda remote, request: iter([answer(remote, request)])
            return
        self.run(self.daemon.answer(protocol, lambda remote, request: iter([answer(remote, request)])))

    def open_stream(self, victim: str, protocol: str) -> RawStream:
        """A new, unused stream. Raises `TransportError`."""
        reader, writer = self.run(self.daemon.open_stream(victim, protocol))
        return RawStream(self, reader, writer)

    def dht(self, victim: str, ask: Callable[[DHTProtocol, PeerID], Awaitable[T]], timeout_s: float = 30.0) -> T:
        """What `ask(protocol, victim)` gives: `protocol.get_stub(victim).rpc_...` sends any request of the DHT."""

        async def call() -> T:
            if self._dht is None:
                self._dht = await DHTProtocol.create(
                    self.daemon.p2p, DHTID.generate(), 20, 5, 5, wait_timeout=timeout_s, client_mode=True
                )
            async with asyncio.timeout(timeout_s):
                return await ask(self._dht, PeerID.from_base58(victim))

        return self.run(call(), timeout_s + 5.0)

    def close(self) -> None:
        """Leave, and end the daemon."""

        async def close() -> None:
            for task in self._background:
                task.cancel()
            await asyncio.gather(*self._background, return_exceptions=True)
            await self.daemon.stop()

        try:
            self.run(close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10.0)
            self._loop.close()
