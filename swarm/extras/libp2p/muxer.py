"""Yamux with limits: py-libp2p's muxer sees no frame before it was checked here. Importing this imports libp2p.

py-libp2p 0.8.1 grants each stream a window and logs when a peer sends more, but keeps all of it; it bounds neither the
streams of a connection nor what all of them hold, and follows frames of types that do not exist into the bytes behind
them. Here a peer that sends more than was granted to it, or a frame that the protocol does not have, loses its
connection and is charged. Frames beyond a rate are read later, so that the peer has to wait (backpressure).
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import trio
from libp2p.abc import IMuxedConn, ISecureConn
from libp2p.io.exceptions import IOException
from libp2p.io.utils import read_exactly
from libp2p.peer.id import ID
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.stream_muxer.yamux import yamux
from libp2p.stream_muxer.yamux.yamux import Yamux, YamuxStream

from swarm.net.bandwidth import TokenBucket
from swarm.net.guard import Counters
from swarm.reasons import Reason

WINDOW_BYTES = 2**20
"""Receive window of one stream at most; it begins with yamux' 256 KiB."""
STREAM_BYTES = 2**14
"""Cost of an open stream, beside the bytes in its buffer: its task, locks and events."""
CONNECTION_BYTES = 2**24
"""Limit of one connection: bytes that arrived and were not read, and its open streams. An honest peer sends a
dozen streams at a time, and of a paced download a window waits.
"""
MAX_STREAMS = 256
"""Open streams of one connection, from both sides."""
FRAMES_PER_S, MESSAGES_PER_S = 4_000.0, 12_000.0
"""Frames, and messages of the encryption, that are read from one connection; an honest peer sends some hundreds."""
BURST_S = 2.0
BODY_TIMEOUT_S = 30.0
"""For the bytes that a frame announced."""
RECOUNT_BYTES = 2**20
"""Arriving bytes after which all connections' holdings are summed again."""

FLAGS = yamux.FLAG_SYN | yamux.FLAG_ACK | yamux.FLAG_FIN | yamux.FLAG_RST


class FrameRefused(IOException):  # type: ignore[misc]
    """A frame that ends its connection."""


class Holdings:
    """Bytes that all connections of a host hold together. The one that holds most is closed at the limit."""

    def __init__(self, max_bytes: int, counters: Counters) -> None:
        self.blame: Callable[[str, Reason], None] = lambda peer, reason: None
        """Called for the peers of connections that are closed."""
        self._max_bytes = max_bytes
        self._counters = counters
        self._connections: set[BoundedYamux] = set()
        self._arrived = 0

    def add(self, connection: BoundedYamux) -> None:
        """A connection has begun."""
        self._connections.add(connection)

    def discard(self, connection: BoundedYamux) -> None:
        """A connection has ended."""
        self._connections.discard(connection)

    def charge(self, connection: BoundedYamux) -> None:
        """A connection is closed because of what its peer sent."""
        self._counters.add("refused_connections")
        self.blame(str(connection.peer_id), Reason.FLOOD)

    def arriving(self, num_bytes: int) -> None:
        """So many bytes are about to be kept."""
        self._arrived += num_bytes
        if self._arrived < RECOUNT_BYTES:
            return
        self._arrived = 0
        holdings = {connection: connection.held() for connection in self._connections}
        if sum(holdings.values()) > self._max_bytes:
            largest = max(holdings, key=holdings.__getitem__)
            self.charge(largest)
            largest.abort()


class BoundedYamux(Yamux):  # type: ignore[misc]
    """One connection."""

    def __init__(self, secured_conn: ISecureConn, peer_id: ID, holdings: Holdings) -> None:
        """Read from `secured_conn` only what is within the limits."""
        super().__init__(Headers(secured_conn, self._admit), peer_id, is_initiator=secured_conn.is_initiator)
        secured_conn.conn.read_msg = Pace(MESSAGES_PER_S).applied(secured_conn.conn.read_msg)
        self._frames = Pace(FRAMES_PER_S)
        self._body = secured_conn
        self._holdings = holdings
        self._under_way = 0
        """Bytes that may still arrive for streams that have ended here."""

    async def start(self) -> None:
        """Run until the connection ends."""
        self._holdings.add(self)
        try:
            await super().start()
        finally:
            self._holdings.discard(self)

    def held(self, announced: int = 0) -> int:
        """Bytes that this connection holds, with those that a frame announces."""
        return sum(map(len, self.stream_buffers.values())) + STREAM_BYTES * len(self.streams) + announced

    def forget(self, stream: YamuxStream) -> None:
        """Drop the bytes of a stream that was reset and is no longer read."""
        if self.streams.pop(stream.stream_id, None) is not None:
            self._ended(stream)
        for kept in (self.stream_buffers, self.stream_events):
            kept.pop(stream.stream_id, None)

    def _finalize_stream_locked(self, stream: YamuxStream, *, fully_closed: bool) -> None:
        there = stream.stream_id in self.streams
        super()._finalize_stream_locked(stream, fully_closed=fully_closed)
        if there and stream.stream_id not in self.streams:
            self._ended(stream)

    def _ended(self, stream: YamuxStream) -> None:
        """A peer that does not know it yet may use up the stream's window."""
        self._under_way = min(self._under_way + stream.recv_window, CONNECTION_BYTES)

    def abort(self) -> None:
        """Close the connection without a goodbye, which a peer may not read; the task that reads it cleans up."""
        # The nursery of a connection that has ended takes no task.
        with suppress(RuntimeError):
            if self._nursery is not None:
                self._nursery.start_soon(self._hang_up)

    async def _hang_up(self) -> None:
        # An error in a task of py-libp2p's ends the host.
        with suppress(Exception):
            await self.secured_conn.close()

    async def _admit(self, header: bytes) -> None:
        """Check the header of a frame, and wait until it is within the rate. Raises `FrameRefused`."""
        if problem := self._problem(*struct.unpack(yamux.YAMUX_HEADER_FORMAT, header)):
            self._holdings.charge(self)
            raise FrameRefused(problem)
        await self._frames.wait()

    def _problem(self, version: int, kind: int, flags: int, stream_id: int, length: int) -> str:
        """The problem of a frame; empty if it is valid."""
        if version or kind > yamux.TYPE_GO_AWAY or flags & ~FLAGS:
            return f"a frame of version {version}, type {kind} and flags {flags:#x} does not exist"
        if kind in (yamux.TYPE_PING, yamux.TYPE_GO_AWAY):
            return ""
        stream = self.streams.get(stream_id)
        if flags & yamux.FLAG_SYN:
            if stream is not None or stream_id % 2 == self.next_stream_id % 2 or not stream_id:
                return f"the peer cannot open stream {stream_id}"
            if len(self.streams) >= MAX_STREAMS:
                return f"{MAX_STREAMS} streams are open"
        if kind != yamux.TYPE_DATA:
            return ""
        if stream is None and not flags & yamux.FLAG_SYN:
            # It is read and dropped.
            self._under_way -= length
            return f"{-self._under_way} bytes too many for streams that have ended" if self._under_way < 0 else ""
        window = yamux.DEFAULT_WINDOW_SIZE if stream is None else stream.recv_window
        if length > window:
            return f"{length} bytes exceed the window of stream {stream_id}, {window} bytes"
        if length and stream is not None and stream.recv_closed and not stream.closed:
            return f"stream {stream_id} has ended"
        if self.held(length) > CONNECTION_BYTES:
            return f"{self.held(length)} bytes would wait to be read"
        self._holdings.arriving(length)
        return ""

    async def _read_data_body(self, length: int) -> bytes:
        with trio.fail_after(BODY_TIMEOUT_S):
            return bytes(await read_exactly(self._body, length))

    async def _write_frame(self, data: bytes) -> None:
        async with self._write_lock:
            written = False
            try:
                await self.secured_conn.write(data)
                written = True
            finally:
                if not written:
                    # Cut short, for example by a time limit: what follows would be read as its rest.
                    self.abort()
        await trio.lowlevel.checkpoint()


class Pace:
    """At most so many steps a second, with a burst; who takes more waits."""

    def __init__(self, per_s: float) -> None:
        self._bucket = TokenBucket(per_s, BURST_S * per_s)

    async def wait(self) -> None:
        """Take one step."""
        now = trio.current_time()
        self._bucket.spend(1, now)
        if wait_s := self._bucket.wait_s(now):
            await trio.sleep(wait_s)

    def applied(self, read: Callable[[], Awaitable[bytes]]) -> Callable[[], Awaitable[bytes]]:
        """`read`, one step each time."""

        async def paced() -> bytes:
            await self.wait()
            return await read()

        return paced


class Headers:
    """A secured connection whose reads, those of frame headers, are checked. All else is the connection's."""

    def __init__(self, conn: ISecureConn, admit: Callable[[bytes], Any]) -> None:
        """`await admit(header)` raises to end the connection."""
        self._conn = conn
        self._admit = admit

    def __getattr__(self, name: str) -> Any:
        """Attributes of the connection."""
        return getattr(self._conn, name)

    async def read(self, count: int | None = None) -> bytes:
        """The next header; shorter if the connection has ended."""
        header = bytes(await self._conn.read(count))
        if len(header) == yamux.HEADER_SIZE:
            await self._admit(header)
        return header


class BoundedMuxers(MuxerMultistream):  # type: ignore[misc]
    """Negotiates the muxer, which is always a `BoundedYamux`; py-libp2p creates its own whatever is configured."""

    def __init__(self, holdings: Holdings) -> None:
        """Connections count towards `holdings`."""
        # Not mplex, which has no pings, so that its connections cannot be watched.
        super().__init__({yamux.PROTOCOL_ID: BoundedYamux})
        self._holdings = holdings
        yamux.MAX_WINDOW_SIZE = WINDOW_BYTES

    async def new_conn(self, conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        """The connection, once both sides agree on the muxer."""
        protocol, _ = await self._selector.select(conn, conn.is_initiator, self.negotiate_timeout)
        return self._annotate_connection(BoundedYamux(conn, peer_id, self._holdings), conn, protocol)
