"""The daemon's process, the node's client of it, and daemons that relay.

The daemon runs in its own session, so Ctrl-C in a terminal reaches only the node, which then stops the daemon. The
daemon watches the connection made by `P2P.replicate` and exits when it closes, so a node killed with -9 leaves none
behind. The sockets between the two are in a folder among the temporary files.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, closing, suppress
from importlib.util import find_spec
from pathlib import Path

import psutil

from swarm.children import inherited
from swarm.errors import PeerUnreachable, TransportError
from swarm.net.addresses.dial import is_name, is_quic, probe, tcp_end, with_ips
from swarm.net.config import NetworkSettings
from swarm.net.hivemind import light_import
from swarm.net.hivemind.control import (
    HOP_PROTOCOL,
    MAX_REPLY_BYTES as MAX_RELAY_REPLY_BYTES,
    RESERVE,
    SELF_DESCRIPTION,
    TIMEOUT_S,
    CircuitLimits,
    Control,
    IncomingStreams,
    base58,
    packed,
    read_limits,
    readable,
)
from swarm.net.hivemind.gate import Gate
from swarm.net.records.envelope import MAX_REPLY_BYTES, encode_request, joined, read_answer
from swarm.net.runtime import AsyncioRuntime
from swarm.protocols import StreamHandler

with light_import.without_the_rest():
    from hivemind.p2p import P2P, PeerID
    from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError, read_unsigned_varint
    from hivemind.proto import p2pd_pb2
    from hivemind.utils.logging import use_hivemind_log_handler
    from hivemind.utils.multiaddr import Multiaddr

logger = logging.getLogger(__name__)

RELAYS = "-relayService=1"
DIAL_ONLY = ("-relay=1", "-relayService=0")
STREAMS = "streams.sock"
GARBAGE_PERCENT = "200"
"""GOGC: heap growth between collections in percent; streams make short-lived copies of every record. In a flood that
keeps 40 MB in use, 400 takes 270 MB, 200 takes 160 MB for 3% more of the daemon's time, and 100 takes 110 MB for 9%."""
STOP_TIMEOUT_S = 1.0
HANG_UP_GRACE_S = 0.5
MAX_TRIES = 16
ANY_HOST = {"/ip4/0.0.0.0/": "/ip4/127.0.0.1/", "/ip6/::/": "/ip6/::1/"}
PREFIX = "swarm-p2pd-"
STALE_AFTER_S = 300.0
"""Age from which a folder without a listener has no owner: a new one's daemon may still be starting."""
CONNECT_TIMEOUT_S = 1.0


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


def trial_start(timeout_s: float = 15.0) -> tuple[float, str]:
    """Seconds until a daemon that listens on loopback only starts and answers, and why its gate is open, if it is.

    Raises `TransportError`.
    """

    async def start() -> tuple[float, str]:
        began = time.monotonic()
        daemon = await Daemon.start(listen=("/ip4/127.0.0.1/tcp/0",), timeout_s=timeout_s)
        try:
            await daemon.addresses()
            return time.monotonic() - began, daemon.gate.problem
        finally:
            await daemon.stop()

    quiet_hivemind()
    return asyncio.run(start())


class DaemonTooLarge(TransportError):
    """The daemon exceeds its memory limit and must be restarted."""


class Daemon:
    """A running daemon and the connections to it; create it with `start`."""

    def __init__(self, process: Child, gate: Gate, folder: Path, max_bytes: int, is_relay: bool = False) -> None:
        """Wrap a process with a control socket in `folder`; use `start` instead."""
        self._taken = (SELF_DESCRIPTION,) if is_relay else (SELF_DESCRIPTION, HOP_PROTOCOL)
        self.gate = gate
        """Decides whom the process may send to."""
        self._process = process
        self._max_bytes = max_bytes
        self._folder = folder
        self._output: deque[str] = deque(maxlen=20)
        self._reader: asyncio.Task[None] | None = None
        self._p2p: P2P | None = None
        self._control = Control(self.control)
        self.incoming = IncomingStreams()
        """The streams that peers open."""

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
        time for the same records than with two. Above half of `max_bytes` of memory it collects garbage harder;
        `check_size` checks the limit.
        """
        folder = make_folder()
        arguments = [
            f"-listen=/unix{folder}/control.sock",
            f"-hostAddrs={','.join(listen)}" if listen else "-noListenAddrs=1",
            *([f"-announceAddrs={','.join(announce)}"] if announce else []),
            *([f"-id={identity}"] if identity else []),
            # Neither -pubsub nor -dht...: they dial and keep whatever untrusted peers send.
            *("-b=0", "-tls=1", "-connManager=1", "-idleTimeout=30s", *nat),
        ]
        environment = {
            **inherited("base"),
            "GOLOG_LOG_LEVEL": "error",
            "GOGC": GARBAGE_PERCENT,
            "GOMAXPROCS": str(processors),
            "GOMEMLIMIT": str(max_bytes // 2),
        }
        gate = Gate(datagrams=not listen or any(map(is_quic, listen)), maps_ports="-natPortMap=1" in nat)
        try:
            process = Child(gate.spawn([str(binary_path()), *arguments], environment))
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise TransportError(
                f"the network daemon cannot run on this platform, try network.transport libp2p: {error}"
            ) from error
        daemon = cls(process, gate, folder, max_bytes, is_relay=RELAYS in nat)
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
        await self._process.attach()
        output = self._process.output
        while True:
            line = (await output.readline()).decode(errors="replace").rstrip()
            if not line:
                raise P2PDaemonError("it exited")
            self._output.append(line)
            if line.startswith("Peer ID:"):
                break
        self._output.clear()
        self._reader = asyncio.create_task(self._read_output(output))
        await self.incoming.start(self._folder / STREAMS)
        for protocol in self._taken:
            await self._take(protocol)
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
        self._control.close()
        self.incoming.stop()
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
        self._process.close()
        self.gate.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def uses_relays(self) -> bool:
        """See `Dialler`."""
        return True

    @property
    def dials_claims(self) -> bool:
        """See `Dialler`. A closed gate prevents it."""
        return self.gate.datagrams or bool(self.gate.problem)

    def can_dial(self, address: str) -> bool:
        """See `Dialler`. `connect` says why it cannot dial an address."""
        return True

    async def connect(self, peer_id: str, addresses: Sequence[str]) -> None:
        """Dial a peer at any of its addresses. Raises `PeerUnreachable` with the reason for each.

        Names are looked up here, not by the daemon, which is let through to the IPs.
        """
        problems = dict(zip(addresses, await asyncio.gather(*map(self._problem, addresses)), strict=True))
        reachable = [address for address, problem in problems.items() if problem is None]
        try:
            if not reachable:
                raise PeerUnreachable(", ".join(f"{address}: {problem}" for address, problem in problems.items()))
            numbers = [each for found in await asyncio.gather(*map(_by_number, reachable)) for each in found]
            target = p2pd_pb2.ConnectRequest(
                peer=PeerID.from_base58(peer_id).to_bytes(),
                addrs=[packed(address) for address in numbers],
            )
            with self.gate.to(filter(None, map(tcp_end, numbers))):
                await self._control.ask(p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=target))
        except PeerUnreachable:
            raise
        except (ValueError, LookupError, TransportError) as error:
            raise PeerUnreachable(f"{', '.join(reachable)}: {error}") from error

    async def _problem(self, address: str) -> str | None:
        if is_quic(address) and not self.gate.datagrams:
            return "no address of QUIC in network.listen, thus dialled by TCP only"
        return await probe(address)

    async def connected(self) -> frozenset[str]:
        """Peer ids with an open connection."""
        return frozenset(await self.remote_addresses())

    async def remote_addresses(self) -> dict[str, tuple[str, ...]]:
        """Remote ends of all open connections, as the kernel sees them, by peer id."""
        response = await self._control.look(p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS))
        found: dict[str, tuple[str, ...]] = {}
        for peer in response.peers:
            peer_id, addresses = base58(peer.id), map(readable, peer.addrs)
            found[peer_id] = (*found.get(peer_id, ()), *(address for address in addresses if address is not None))
        return found

    async def addresses(self) -> tuple[str, ...]:
        """Addresses that the daemon listens on or announces, without the peer id."""
        response = await self._control.look(p2pd_pb2.Request(type=p2pd_pb2.Request.IDENTIFY))
        return tuple(address for address in map(readable, response.identify.addrs) if address is not None)

    async def disconnect(self, peer_id: str) -> None:
        """Close every connection to a peer. Raises `TransportError`."""
        target = p2pd_pb2.DisconnectRequest(peer=PeerID.from_base58(peer_id).to_bytes())
        await self._control.ask(p2pd_pb2.Request(type=p2pd_pb2.Request.DISCONNECT, disconnect=target))

    async def call(self, peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> bytes:
        """The whole answer of a peer to one request, within `timeout_s`. Raises `PeerUnreachable`."""
        try:
            async with asyncio.timeout(timeout_s):
                return await joined(self.stream(peer_id, protocol, payload, timeout_s, MAX_REPLY_BYTES))
        except TimeoutError as error:
            raise PeerUnreachable(f"{peer_id} did not answer {protocol} within {timeout_s:g} s") from error

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
                reader, writer = await self.open_stream(peer_id, protocol)
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

    async def open_stream(self, peer_id: str, protocol: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A stream to a connected peer. Raises `TransportError`."""
        return await self._control.open_stream(peer_id, protocol)

    async def answer(self, protocol: str, handler: StreamHandler) -> None:
        """Answer other peers' requests for `protocol`. Raises `TransportError`."""
        self.incoming.handlers[protocol] = handler
        await self._take(protocol)

    async def _take(self, protocol: str) -> None:
        """Have streams of `protocol` come to this process, also if the daemon serves it by itself."""
        target = p2pd_pb2.StreamHandlerRequest(
            addr=Multiaddr(f"/unix{self._folder}/{STREAMS}").to_bytes(), proto=[protocol], balanced=False
        )
        await self._control.ask(p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_HANDLER, streamHandler=target))

    async def circuit_limits(self, relay_id: str) -> CircuitLimits:
        """Make a reservation at a connected relay; returns the relay's limits. Raises `PeerUnreachable`."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
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


async def _by_number(address: str) -> list[str]:
    if not is_name(address):
        return [address]
    return with_ips(address, await AsyncioRuntime().look_up(address.split("/")[2]), lambda ip: "%" not in ip)


class Child:
    """A started process: its output, and when it ends."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """Wrap a process whose output is a pipe, on the running loop; it is read from `attach` on."""
        self.output = asyncio.StreamReader()
        """Its output."""
        self._process = process
        self._pipe: asyncio.ReadTransport | None = None
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        threading.Thread(target=self._reap, name="daemon-end", daemon=True).start()

    async def attach(self) -> None:
        """Begin to read its output."""
        self._pipe, _ = await self._loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self.output), self._process.stdout
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait until it has ended; returns how."""
        return await asyncio.shield(self._ended)

    def close(self) -> None:
        """Read nothing more."""
        if self._pipe is not None:
            self._pipe.close()

    def _reap(self) -> None:
        code = self._process.wait()
        # The loop may have ended before it.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._note, code)

    def _note(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)


async def start_relay(
    start: Callable[..., Awaitable[Daemon]], listen: Sequence[str], settings: NetworkSettings
) -> Daemon:
    """A daemon whose circuits have the limits of `settings`, verified by a request. Raises `TransportError`.

    The daemon starts two relays, one with our limits and one with its defaults of two minutes and 128 KiB; the one that
    is ready last serves. So we check, and retry. On one processor ours wins five times in six, on two hardly ever.
    """
    wanted = CircuitLimits(settings.relay_circuit_s, settings.relay_circuit_bytes)
    for _ in range(MAX_TRIES):
        daemon = await start(processors=1)
        try:
            limits = await _limits_of(daemon, tuple(map(_from_here, listen)))
        except PeerUnreachable as error:
            logger.warning("the limits of this relay could not be checked and may be lower than configured: %s", error)
            return daemon
        except BaseException:
            await daemon.stop()
            raise
        if limits == wanted:
            return daemon
        await daemon.stop()
    raise TransportError(
        f"the relay daemon started {MAX_TRIES} times with the limits {limits} instead of {wanted}; start it again"
    )


async def _limits_of(daemon: Daemon, addresses: Sequence[str]) -> CircuitLimits:
    """The limits that this relay reports to an unknown peer. Raises `PeerUnreachable`.

    The peer is new each time: a node that lost a connection to a peer waits before it dials that peer again.
    """
    asker = await Daemon.start(listen=())
    try:
        await asker.connect(daemon.peer_id, addresses)
        return await asker.circuit_limits(daemon.peer_id)
    finally:
        await asker.stop()


def _from_here(listen: str) -> str:
    for anywhere, here in ANY_HOST.items():
        listen = listen.replace(anywhere, here)
    return listen


def make_folder() -> Path:
    """A folder that only this user can read: the control socket gives full use of the node's identity.

    What killed nodes left is removed.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, or one that another node is removing
            _remove_if_left(folder)
    return Path(tempfile.mkdtemp(prefix=PREFIX))


def _remove_if_left(folder: Path) -> None:
    if time.time() - folder.lstat().st_mtime <= STALE_AFTER_S:
        return
    sockets = [path for path in folder.iterdir() if stat.S_ISSOCK(path.lstat().st_mode)]
    if any(map(_is_heard, sockets)):
        return
    for path in sockets:
        path.unlink()
    folder.rmdir()


def _is_heard(path: Path) -> bool:
    """Whether a process listens there."""
    with closing(socket.socket(socket.AF_UNIX)) as probe:
        probe.settimeout(CONNECT_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # too busy to answer, or not ours
        return True
