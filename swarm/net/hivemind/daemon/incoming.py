"""The streams that peers open: which are served, and their answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from swarm.errors import TransportError
from swarm.net.hivemind import light_import
from swarm.net.hivemind.daemon.control import BUFFER_BYTES, base58, readable
from swarm.net.hivemind.runtime import AsyncioRuntime
from swarm.net.records.framing import (
    LOOK_AGAIN_S,
    NOT_YET_S,
    REFUSAL_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    STALL_TIMEOUT_S,
    encode_answer,
    encode_error,
    read_request,
)
from swarm.net.runtime import until
from swarm.net.services.stream_admission import Stream, StreamAdmission
from swarm.protocols import StreamHandler

with light_import.without_the_rest():
    from hivemind.p2p.p2p_daemon_bindings.utils import read_pbmsg_safe
    from hivemind.proto import p2pd_pb2

logger = logging.getLogger(__name__)

SELF_DESCRIPTION = "/ipfs/id/push/1.0.0"
"""What a peer pushes to say of itself. The daemon would dial the addresses, and keep the names of protocols for good:
75 KB for a message of 8 KB. So such streams come here, count as requests, and are not read."""


class IncomingStreams:
    """Serves one request per stream; the daemon connects to a socket of ours for each stream that a peer opens."""

    def __init__(self) -> None:
        """Serves nothing before `start`."""
        self.handlers: dict[str, StreamHandler] = {}
        """By protocol."""
        self.admission = StreamAdmission()
        """Decides which streams are served."""
        self.admits: Callable[[str], bool] = lambda peer_id: True
        """Whether a peer's requests are answered at all."""
        self.pace: Callable[[int], float] = lambda num_bytes: 0.0
        """Seconds to wait before this many bytes of an answer are sent."""
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
        if not self.admits(remote):
            return
        stream = self.admission.admit(remote, readable(info.addr) or "", info.proto, writer.transport.abort)
        if stream is None:
            return
        try:
            if info.proto != SELF_DESCRIPTION:
                await self._attend(stream, info.proto, reader, writer)
        finally:
            self.admission.release(stream)

    async def _attend(
        self, stream: Stream, protocol: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        async def read(count: int) -> bytes:
            stream.peer_turn(count)
            return await reader.readexactly(count)

        # Read the request even to refuse it: a close with unread bytes would lose the refusal.
        async with asyncio.timeout(REQUEST_TIMEOUT_S if stream.served else REFUSAL_TIMEOUT_S):
            request = await read_request(read)
        stream.own_turn()
        if stream.served:
            await self._reply(stream, protocol, request, reader, writer)
        else:
            await _send(writer, encode_error("busy, ask later"))
        stream.peer_turn()
        await _hung_up(reader)

    async def _reply(
        self, stream: Stream, protocol: str, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            for frame in encode_answer(self.handlers[protocol](stream.remote, request)):
                if isinstance(frame, bytes) and frame:
                    await asyncio.sleep(self.pace(len(frame)))
                    stream.peer_turn(len(frame))
                    await _send(writer, frame)
                    stream.own_turn()
                elif reader.at_eof():
                    return  # the asker has closed the stream
                elif isinstance(frame, bytes):
                    await asyncio.sleep(NOT_YET_S)
                else:
                    await until(frame, self._runtime, LOOK_AGAIN_S)
        except (OSError, TimeoutError):
            raise
        except Exception as error:
            # A handler's error is reported to its peer only.
            logger.debug("the handler for %s failed", protocol, exc_info=True)
            await _send(writer, encode_error(f"the handler failed: {type(error).__name__}"))


async def _send(writer: asyncio.StreamWriter, frame: bytes) -> None:
    async with asyncio.timeout(STALL_TIMEOUT_S):
        writer.write(frame)
        await writer.drain()


async def _hung_up(reader: asyncio.StreamReader) -> None:
    """Wait until the asker has read its answer and closed the stream. If this end closes first, the daemon resets the
    stream, which over QUIC loses all bytes in flight.
    """
    async with asyncio.timeout(STALL_TIMEOUT_S):
        await reader.read(1)
