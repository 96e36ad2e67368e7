"""The go daemon: its process, its control protocol, and all uses of hivemind's private interfaces.

Importing this imports parts of hivemind: import it only to start a network.

The daemon runs in its own session, so Ctrl-C in a terminal reaches only the node, which then stops the daemon. The
daemon watches the connection made by `P2P.replicate` and exits when it closes, so a node killed with -9 leaves none
behind.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import psutil

from swarm.errors import PeerUnreachable, TransportError
from swarm.net.addresses.dial import probe
from swarm.net.hivemind import light_import
from swarm.net.hivemind.circuit import HOP_PROTOCOL, RESERVE, CircuitLimits, read_limits
from swarm.net.hivemind.circuit import MAX_REPLY_BYTES as MAX_RELAY_REPLY_BYTES
from swarm.net.records.framing import (
    MAX_REPLY_BYTES,
    NOT_YET_S,
    REFUSAL_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    STALL_TIMEOUT_S,
    encode_answer,
    encode_error,
    encode_request,
    read_answer,
    read_request,
)
from swarm.net.services.stream_admission import Stream, StreamAdmission
from swarm.net.socket_folders import make_folder
from swarm.protocols import StreamHandler

with light_import.without_the_rest():
    from hivemind.p2p import P2P, PeerID
    from hivemind.p2p.p2p_daemon_bindings.utils import (
        P2PDaemonError,
        read_pbmsg_safe,
        read_unsigned_varint,
        write_pbmsg,
    )
    from hivemind.proto import p2pd_pb2
    from hivemind.utils.logging import use_hivemind_log_handler
    from hivemind.utils.multiaddr import Multiaddr

logger = logging.getLogger(__name__)

DIAL_ONLY = ("-relay=1", "-relayService=0")
STREAMS = "streams.sock"
STREAM_BUFFER_BYTES = 2**19
GARBAGE_PERCENT = "200"
"""GOGC: heap growth between collections in percent; gossip makes short-lived copies of every record. In a flood that
keeps 40 MB in use, 400 takes 270 MB, 200 takes 160 MB for 3% more of the daemon's time, and 100 takes 110 MB for 9%."""
CONTROL_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 1.0
HANG_UP_GRACE_S = 0.5
P2P_CODE = b"\xa5\x03"
CIRCUIT_CODE = b"\xa2\x02"
"""Multicodec numbers 421 and 290 as varints."""


def binary_path() -> Path:
    """The daemon's executable, as hivemind ships it. Raises `TransportError`."""
    spec = find_spec("hivemind")
    folders = spec.submodule_search_locations if spec else None
    path = Path(folders[0]) / "hivemind_cli" / "p2pd" if folders else None
    if path is None or not path.is_file():
        raise TransportError(f"hivemind's network daemon was not found at {path}: reinstall hivemind")
    return path


def quiet_hivemind() -> None:
    """Send hivemind's log to ours, errors only: a lost peer is no error, and is counted."""
    use_hivemind_log_handler("nowhere")
    logging.getLogger("hivemind").setLevel(logging.ERROR)
    # hivemind renames this level for the whole process; undo that.
    logging.addLevelName(logging.WARNING, "WARNING")


def trial_start(timeout_s: float = 15.0) -> float:
    """Seconds until a daemon that listens on loopback only starts and answers. Raises `TransportError`."""

    async def start() -> float:
        began = time.monotonic()
        daemon = await Daemon.start(listen=("/ip4/127.0.0.1/tcp/0",), timeout_s=timeout_s)
        try:
            await daemon.addresses()
            return time.monotonic() - began
        finally:
            await daemon.stop()

    quiet_hivemind()
    return asyncio.run(start())


class DaemonTooLarge(TransportError):
    """The daemon exceeds its memory limit and must be restarted."""


class Daemon:
    """A running daemon and the connections to it; create it with `start`."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path, max_bytes: int) -> None:
        """Wrap a process with a control socket in `folder`; use `start` instead."""
        self._process = process
        self._max_bytes = max_bytes
        self._folder = folder
        self._output: deque[str] = deque(maxlen=20)
        self._reader: asyncio.Task[None] | None = None
        self._p2p: P2P | None = None
        self._publisher: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._looker: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._looking = asyncio.Lock()
        self._handlers: dict[str, StreamHandler] = {}
        self._server: asyncio.Server | None = None
        self._streams: set[asyncio.Task[object]] = set()
        self.admission = StreamAdmission()
        """Decides which streams are served."""
        self.admits: Callable[[str], bool] = lambda peer_id: True
        """Whether a peer's requests are answered at all."""
        self.pace: Callable[[int], float] = lambda num_bytes: 0.0
        """Seconds to wait before this many bytes of an answer are sent."""

    @classmethod
    async def start(
        cls,
        *,
        listen: Sequence[str],
        announce: Sequence[str] = (),
        identity: Path | None = None,
        nat: Sequence[str] = DIAL_ONLY,
        processors: int = 1,
        max_bytes: int = 2**30,
        timeout_s: float = 15.0,
    ) -> Daemon:
        """Start a daemon and attach to it; without `listen` addresses it can only dial. Raises `TransportError`.

        `nat`: arguments from `nat_arguments`. `processors`: used at a time; with one, the daemon takes a quarter less
        time for the same gossip than with two. Above half of `max_bytes` of memory it collects garbage harder;
        `check_size` checks the limit.
        """
        folder = make_folder()
        arguments = [
            f"-listen=/unix{folder}/control.sock",
            "-dhtServer=1" if listen else "-dhtClient=1",
            f"-hostAddrs={','.join(listen)}" if listen else "-noListenAddrs=1",
            *([f"-announceAddrs={','.join(announce)}"] if announce else []),
            *([f"-id={identity}"] if identity else []),
            *("-pubsub=1", "-b=0", "-tls=1", "-connManager=1", "-idleTimeout=30s", *nat),
        ]
        try:
            process = await asyncio.create_subprocess_exec(
                str(binary_path()),
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                env={
                    **os.environ,
                    "GOLOG_LOG_LEVEL": "error",
                    "GOGC": GARBAGE_PERCENT,
                    "GOMAXPROCS": str(processors),
                    "GOMEMLIMIT": str(max_bytes // 2),
                },
            )
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise TransportError(
                f"the network daemon cannot run on this platform, try network.transport libp2p: {error}"
            ) from error
        daemon = cls(process, folder, max_bytes)
        try:
            async with asyncio.timeout(timeout_s):
                await daemon._attach()
        except (TimeoutError, OSError, P2PDaemonError, asyncio.IncompleteReadError) as error:
            await daemon.stop()
            reason = str(error) or f"not ready after {timeout_s:g} s"
            raise TransportError(f"the network daemon did not start: {reason}; {daemon.last_output()}") from error
        except BaseException:
            await daemon.stop()
            raise
        return daemon

    async def _attach(self) -> None:
        output = self._process.stdout
        assert output is not None
        while True:
            line = (await output.readline()).decode(errors="replace").rstrip()
            if not line:
                raise P2PDaemonError("it exited")
            self._output.append(line)
            if line.startswith("Peer ID:"):
                break
        self._output.clear()
        self._reader = asyncio.create_task(self._read_output(output))
        self._server = await asyncio.start_unix_server(
            self._accept, str(self._folder / STREAMS), limit=STREAM_BUFFER_BYTES
        )
        self._p2p = await P2P.replicate(Multiaddr(f"/unix{self._folder}/control.sock"))

    async def _read_output(self, output: asyncio.StreamReader) -> None:
        while line := await output.readline():
            self._output.append(line.decode(errors="replace").rstrip())
            logger.debug("daemon: %s", self._output[-1])

    def last_output(self) -> str:
        """The daemon's last output line, for error messages."""
        return f"its last output: {self._output[-1]}" if self._output else "it printed nothing"

    @property
    def control(self) -> Path:
        """The control socket, for a second client; it gives full use of the identity."""
        return self._folder / "control.sock"

    @property
    def p2p(self) -> P2P:
        """hivemind's handle."""
        assert self._p2p is not None
        return self._p2p

    @property
    def peer_id(self) -> str:
        """Peer id of the daemon's key."""
        return str(self.p2p.peer_id)

    @property
    def pid(self) -> int:
        """Process id of the daemon."""
        return self._process.pid

    def check_size(self) -> None:
        """Raises `DaemonTooLarge` if the daemon exceeds its memory limit.

        The daemon limits neither streams nor peers' state, and has no option to do so.
        """
        with suppress(psutil.Error):
            num_bytes = psutil.Process(self.pid).memory_info().rss
            if num_bytes > self._max_bytes:
                raise DaemonTooLarge(
                    f"the network daemon uses {num_bytes} bytes, above network.daemon_bytes ({self._max_bytes})"
                )

    async def wait_closed(self) -> str:
        """Wait until the daemon exits or closes its control connection; returns which."""
        # hivemind's own `is_alive` stays true in both cases, so it cannot be used.
        hung_up: asyncio.Task[None] = self.p2p._client.control._read_task
        exited = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait({hung_up, exited}, return_when=asyncio.FIRST_COMPLETED)
            # A dying daemon closes the connection before it exits.
            await asyncio.wait({exited}, timeout=HANG_UP_GRACE_S)
        finally:
            exited.cancel()
        if self._process.returncode is None:
            return f"the daemon closed its control connection; {self.last_output()}"
        return f"the daemon exited with {self._process.returncode}; {self.last_output()}"

    async def stop(self) -> None:
        """Stop the process and wait for it."""
        for kept in (self._publisher, self._looker):
            if kept is not None:
                kept[1].close()
        if self._server is not None:
            self._server.close()
        for stream in self._streams:
            stream.cancel()
        if self._p2p is not None:
            await self._p2p.shutdown()
        for end in (signal.SIGTERM, signal.SIGKILL):
            if self._process.returncode is None:
                # Not `send_signal`: it reaps a dead process before asyncio does, which then invents an exit code.
                with suppress(ProcessLookupError):
                    os.kill(self._process.pid, end)
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await self._process.wait()
                    break
        if self._reader is not None:
            self._reader.cancel()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def connect(self, peer_id: str, addresses: Sequence[str]) -> None:
        """Dial a peer at any of its addresses. Raises `PeerUnreachable` with the reason for each."""
        problems = dict(zip(addresses, await asyncio.gather(*map(probe, addresses)), strict=True))
        reachable = [address for address, problem in problems.items() if problem is None]
        try:
            if not reachable:
                raise PeerUnreachable(", ".join(f"{address}: {problem}" for address, problem in problems.items()))
            target = p2pd_pb2.ConnectRequest(
                peer=PeerID.from_base58(peer_id).to_bytes(),
                addrs=[_packed(address) for address in reachable],
            )
            await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=target))
        except PeerUnreachable:
            raise
        except (ValueError, LookupError, TransportError) as error:
            raise PeerUnreachable(f"{', '.join(reachable)}: {error}") from error

    async def connected(self) -> frozenset[str]:
        """Peer ids with an open connection."""
        return frozenset(await self.remote_addresses())

    async def remote_addresses(self) -> dict[str, tuple[str, ...]]:
        """Remote ends of all open connections, as the kernel sees them, by peer id."""
        response = await self._look(p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS))
        found: dict[str, tuple[str, ...]] = {}
        for peer in response.peers:
            peer_id, addresses = _base58(peer.id), map(_readable, peer.addrs)
            found[peer_id] = (*found.get(peer_id, ()), *(address for address in addresses if address is not None))
        return found

    async def addresses(self) -> tuple[str, ...]:
        """Addresses that the daemon listens on or announces, without the peer id."""
        response = await self._look(p2pd_pb2.Request(type=p2pd_pb2.Request.IDENTIFY))
        readable = (_readable(address) for address in response.identify.addrs)
        return tuple(address for address in readable if address is not None)

    async def subscribers(self, topic: str) -> frozenset[str]:
        """Connected peers that subscribe to `topic`."""
        question = p2pd_pb2.PSRequest(type=p2pd_pb2.PSRequest.LIST_PEERS, topic=topic)
        response = await self._look(p2pd_pb2.Request(type=p2pd_pb2.Request.PUBSUB, pubsub=question))
        return frozenset(_base58(peer) for peer in response.pubsub.peerIDs)

    async def subscribe(self, topic: str, deliver: Callable[[str, bytes], object]) -> None:
        """Call `deliver(sender, message)` for every message on `topic`, until the daemon closes the connection."""
        reader, writer = await self._open()
        try:
            question = p2pd_pb2.PSRequest(type=p2pd_pb2.PSRequest.SUBSCRIBE, topic=topic)
            await self._exchange(reader, writer, p2pd_pb2.Request(type=p2pd_pb2.Request.PUBSUB, pubsub=question))
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    message = p2pd_pb2.PSMessage()
                    await read_pbmsg_safe(reader, message)
                    # `from` is a Python keyword, hence `getattr`.
                    deliver(_base58(getattr(message, "from")), message.data)
        finally:
            writer.close()

    async def publish(self, topic: str, message: bytes) -> None:
        """Publish a message of at most 1 MiB by gossip. Raises `TransportError`."""
        if self._publisher is None:
            self._publisher = await self._open()
        reader, writer = self._publisher
        request = p2pd_pb2.PSRequest(type=p2pd_pb2.PSRequest.PUBLISH, topic=topic, data=message)
        await self._exchange(reader, writer, p2pd_pb2.Request(type=p2pd_pb2.Request.PUBSUB, pubsub=request))

    async def disconnect(self, peer_id: str) -> None:
        """Close every connection to a peer. Raises `TransportError`."""
        target = p2pd_pb2.DisconnectRequest(peer=PeerID.from_base58(peer_id).to_bytes())
        await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.DISCONNECT, disconnect=target))

    async def call(self, peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> bytes:
        """The whole answer of a peer to one request, within `timeout_s`. Raises `PeerUnreachable`."""
        answer = bytearray()
        try:
            async with (
                asyncio.timeout(timeout_s),
                aclosing(self.stream(peer_id, protocol, payload, timeout_s, MAX_REPLY_BYTES)) as chunks,
            ):
                async for chunk in chunks:
                    answer += chunk
        except TimeoutError as error:
            raise PeerUnreachable(f"{peer_id} did not answer {protocol} within {timeout_s:g} s") from error
        return bytes(answer)

    async def stream(
        self, peer_id: str, protocol: str, payload: bytes, timeout_s: float, max_bytes: int
    ) -> AsyncGenerator[bytes, None]:
        """Chunks of a peer's answer; `timeout_s` limits each silence. Raises `PeerUnreachable`."""
        writer: asyncio.StreamWriter | None = None

        async def read(count: int) -> bytes:
            try:
                async with asyncio.timeout(timeout_s):
                    return await reader.readexactly(count)
            except TimeoutError as error:
                raise PeerUnreachable(f"no data for {timeout_s:g} s") from error
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                raise PeerUnreachable("the stream ended before the answer was complete") from error

        try:
            request = encode_request(payload)
            async with asyncio.timeout(timeout_s):
                reader, writer = await self._open_stream(peer_id, protocol)
                writer.write(request)
                await writer.drain()
            async with aclosing(read_answer(read, max_bytes)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except TimeoutError as error:
            raise PeerUnreachable(f"{peer_id} did not answer {protocol} within {timeout_s:g} s") from error
        except (ValueError, OSError, TransportError) as error:
            raise PeerUnreachable(f"{peer_id} did not answer {protocol}: {error}") from error
        finally:
            if writer is not None:
                writer.close()

    async def _open_stream(self, peer_id: str, protocol: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        target = p2pd_pb2.StreamOpenRequest(peer=PeerID.from_base58(peer_id).to_bytes(), proto=[protocol])
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

    async def answer(self, protocol: str, handler: StreamHandler) -> None:
        """Answer other peers' requests for `protocol`. Raises `TransportError`."""
        self._handlers[protocol] = handler
        target = p2pd_pb2.StreamHandlerRequest(
            addr=Multiaddr(f"/unix{self._folder}/{STREAMS}").to_bytes(), proto=[protocol], balanced=False
        )
        await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_HANDLER, streamHandler=target))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one stream that a peer has opened."""
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            await self._serve(reader, writer)
        except (TransportError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            logger.debug("dropped an incoming stream: %s", error)
        except asyncio.CancelledError:
            pass  # only `close` cancels; asyncio of Python 3.11 prints a traceback for a stream's cancelled task
        finally:
            self._streams.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            info = p2pd_pb2.StreamInfo()
            await read_pbmsg_safe(reader, info)
        remote = _base58(info.peer)
        if not self.admits(remote):
            return
        stream = self.admission.admit(remote, _readable(info.addr) or "", info.proto, writer.transport.abort)
        if stream is None:
            return
        try:
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
            for frame in encode_answer(self._handlers[protocol](stream.remote, request)):
                if frame:
                    await asyncio.sleep(self.pace(len(frame)))
                    stream.peer_turn(len(frame))
                    await _send(writer, frame)
                    stream.own_turn()
                elif reader.at_eof():
                    return  # the asker has closed the stream
                else:
                    await asyncio.sleep(NOT_YET_S)
        except (OSError, TimeoutError):
            raise
        except Exception as error:
            # A handler's error is reported to its peer only.
            logger.debug("the handler for %s failed", protocol, exc_info=True)
            await _send(writer, encode_error(f"the handler failed: {type(error).__name__}"))

    async def circuit_limits(self, relay_id: str) -> CircuitLimits:
        """Make a reservation at a connected relay; returns the relay's limits. Raises `PeerUnreachable`."""
        try:
            async with asyncio.timeout(CONTROL_TIMEOUT_S):
                _, reader, writer = await self.p2p._client.stream_open(PeerID.from_base58(relay_id), [HOP_PROTOCOL])
                try:
                    writer.write(bytes([len(RESERVE)]) + RESERVE)
                    num_bytes = await read_unsigned_varint(reader)
                    if num_bytes > MAX_RELAY_REPLY_BYTES:
                        raise ValueError(f"a relay's answer must have at most {MAX_RELAY_REPLY_BYTES} bytes")
                    return read_limits(await reader.readexactly(num_bytes))
                finally:
                    writer.close()
        except (TimeoutError, ValueError, OSError, P2PDaemonError, asyncio.IncompleteReadError) as error:
            raise PeerUnreachable(
                f"the relay {relay_id} granted no reservation: {str(error) or repr(error)}"
            ) from error

    async def _look(self, request: p2pd_pb2.Request) -> p2pd_pb2.Response:
        """Ask for what the daemon knows at once, every second: on a connection that is kept."""
        async with self._looking:
            if self._looker is None:
                self._looker = await self._open()
            try:
                return await self._exchange(*self._looker, request)
            except BaseException:
                # An answer that nobody waited for would be taken for the next one.
                self._looker[1].close()
                self._looker = None
                raise

    async def _ask(self, request: p2pd_pb2.Request) -> p2pd_pb2.Response:
        """Ask for what may take long, like a dial: on a connection of its own."""
        reader, writer = await self._open()
        try:
            return await self._exchange(reader, writer, request)
        finally:
            writer.close()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await asyncio.open_unix_connection(str(self._folder / "control.sock"), limit=STREAM_BUFFER_BYTES)
        except OSError as error:
            raise TransportError(f"the daemon's control socket cannot be opened: {error}") from error

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: p2pd_pb2.Request
    ) -> p2pd_pb2.Response:
        try:
            async with asyncio.timeout(CONTROL_TIMEOUT_S):
                await write_pbmsg(writer, request)
                return await _read_response(reader)
        except TimeoutError as error:
            raise TransportError(f"the daemon did not answer within {CONTROL_TIMEOUT_S:g} s") from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise TransportError("the daemon closed the connection") from error


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


async def _read_response(reader: asyncio.StreamReader) -> p2pd_pb2.Response:
    response = p2pd_pb2.Response()
    await read_pbmsg_safe(reader, response)
    if response.type == p2pd_pb2.Response.ERROR:
        raise TransportError(_last_line(response.error.msg))
    return response


@lru_cache(1_024)
def _base58(peer_id: bytes) -> str:
    return str(PeerID(peer_id).to_base58())


@lru_cache(4_096)
def _readable(address: bytes) -> str | None:
    # The daemon supports address types that hivemind's parser does not.
    try:
        return str(Multiaddr(address))
    except (ValueError, LookupError):
        logger.debug("cannot parse an address that the daemon reports: %s", address.hex())
        return None


def _packed(address: str) -> bytes:
    # hivemind encodes the relay's id in an address as a CID, but the daemon reads only the older multihash.
    direct, separator, relay = address.partition("/p2p/")
    relay_id, _, rest = relay.partition("/")
    if not separator or rest != "p2p-circuit":
        return bytes(Multiaddr(address).to_bytes())
    multihash = PeerID.from_base58(relay_id).to_bytes()
    return bytes(Multiaddr(direct).to_bytes() + P2P_CODE + bytes([len(multihash)]) + multihash + CIRCUIT_CODE)


def _last_line(message: str) -> str:
    # The message has one line per dial, after a line with their number.
    return message.strip().splitlines()[-1].strip(" *") if message.strip() else "no reason given"
