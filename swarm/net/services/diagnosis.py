"""Diagnosis that every node offers to its peers: its clock, and a dial-back test of reachability.

A dial-back must be useless to all but the asker:

- The asker names ports, never a host. The host is the remote end of its own connection, as this machine sees it.
  A relayed connection has none, because its remote end is the relay.
- An open port counts only if a libp2p node greets there. The reply does not reveal other services at a shared address
  or the reason of a failure, and a failure is reported when the time is up, not when it happens.
- One dial-back at a time per address, few ports each, few in total, never ports below 1024. No payload is sent.

A handler must not block: the first request starts the dials, later requests fetch the result.
"""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Literal, Protocol

import msgspec
from msgspec import Struct

from swarm.errors import PeerUnreachable
from swarm.net.addresses.dial import plain_ip
from swarm.protocols import RequestHandler, RequestTransport
from swarm.types import complete

TIME_PROTOCOL = "/swarm/time/1"
DIAL_BACK_PROTOCOL = "/swarm/dialback/1"
NUM_CLOCK_READINGS = 4
MAX_PORTS = 4
FIRST_PORT = 1024
MAX_DIAL_BACKS = 8
MAX_REMEMBERED = 256
DIAL_TIMEOUT_S = 3.0
KEEP_S = 20.0
"""A result is kept this long; the same address must wait as long for its next dial-back."""
POLL_EVERY_S = 0.5
GREETING = b"\x13/multistream/1.0.0\n"
"""The first message of a libp2p node on a new connection."""


class DialBackRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Ports on which the asker wants to be dialled."""

    ports: tuple[int, ...]


class DialBackReply(Struct, frozen=True):
    """State of a dial-back."""

    state: Literal["pending", "done", "refused"]
    detail: str = ""
    """Reason of a refusal."""
    observed: str | None = None
    """The asker's IP address, as seen here."""
    reached: dict[int, bool] = {}
    """Whether a libp2p node answered, by port."""


class ClockReading(Struct, frozen=True):
    """Another machine's clock."""

    offset_s: float
    """Remote time minus local time."""
    uncertainty_s: float
    """Error bound of the offset: half the round trip."""


class Host(Protocol):
    """A transport that knows the remote ends of a peer's connections."""

    def serve(self, protocol: str, handler: RequestHandler) -> None:
        """Answer requests for `protocol`."""

    def observed(self, peer_id: str) -> tuple[str, ...]:
        """Multiaddrs of the remote ends of a peer's connections."""


def serve_diagnosis(host: Host, clock: Callable[[], float] = time.time) -> None:
    """Serve both protocols of this module on a transport."""
    host.serve(TIME_PROTOCOL, lambda remote, request: struct.pack(">d", clock()))
    host.serve(DIAL_BACK_PROTOCOL, DialBacks(host.observed).handle)


def read_clock(transport: RequestTransport, peer_id: str, timeout_s: float = 5.0) -> ClockReading:
    """A peer's clock relative to ours, from the fastest of several round trips. Raises `PeerUnreachable`."""
    readings = []
    for _ in range(NUM_CLOCK_READINGS):
        sent, began = time.time(), time.monotonic()
        reply = transport.request(peer_id, TIME_PROTOCOL, b"", timeout_s)
        round_trip_s = time.monotonic() - began
        if len(reply) != 8:
            raise PeerUnreachable(f"{peer_id} must answer a time request with 8 bytes, got {len(reply)}")
        readings.append(clock_reading(struct.unpack(">d", reply)[0], sent, round_trip_s))
    return min(readings, key=lambda reading: reading.uncertainty_s)


def clock_reading(remote: float, sent: float, round_trip_s: float) -> ClockReading:
    """Estimate the offset: the remote clock was read halfway through the round trip, plus or minus half of it."""
    return ClockReading(remote - (sent + round_trip_s / 2), round_trip_s / 2)


def ask_dial_back(
    transport: RequestTransport, peer_id: str, ports: Sequence[int], timeout_s: float = 15.0
) -> DialBackReply:
    """Ask a peer to dial us back on these ports and wait for the result. Raises `PeerUnreachable`."""
    request = msgspec.json.encode(DialBackRequest(tuple(ports[:MAX_PORTS])))
    deadline = time.monotonic() + timeout_s
    while True:
        encoded = transport.request(peer_id, DIAL_BACK_PROTOCOL, request, timeout_s)
        try:
            reply = msgspec.json.decode(encoded, type=DialBackReply)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PeerUnreachable(
                f"the answer of {peer_id} to a dial-back request cannot be decoded: {error}"
            ) from error
        if reply.state != "pending":
            return reply
        if time.monotonic() > deadline:
            raise PeerUnreachable(f"{peer_id} did not finish its dial-back within {timeout_s:g} s")
        time.sleep(POLL_EVERY_S)


Dialler = Callable[[str, Sequence[int]], dict[int, bool]]


class DialBacks:
    """Dials askers back, a few at once. `handle` runs on the network thread and never blocks."""

    def __init__(
        self,
        observed: Callable[[str], tuple[str, ...]],
        dial: Dialler | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`observed` returns a peer's remote multiaddrs; `dial` blocks and runs on a separate thread."""
        self._observed = observed
        self._dial = dial or dial_ports
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}
        """Requests by the asker's IP: peer ids are free, addresses are not."""

    def handle(self, remote: str, request: bytes) -> bytes:
        """Answer one request."""
        return msgspec.json.encode(self._answer(remote, request))

    def _answer(self, remote: str, request: bytes) -> DialBackReply:
        try:
            ports = msgspec.json.decode(request, type=DialBackRequest).ports
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return DialBackReply("refused", f"not a request: {error}")
        if not 1 <= len(set(ports)) == len(ports) <= MAX_PORTS or not all(FIRST_PORT <= p < 65_536 for p in ports):
            return DialBackReply("refused", f"1 to {MAX_PORTS} different ports from {FIRST_PORT} on are dialled")
        addresses = self._observed(remote)
        host = asker_ip(addresses)
        if host is None:
            # A new connection appears in the table within about a second.
            return DialBackReply("refused", "you are connected through a relay") if addresses else PENDING
        return self._job_of(host, remote, ports)

    def _job_of(self, host: str, remote: str, ports: tuple[int, ...]) -> DialBackReply:
        with self._lock:
            now = self._clock()
            self._jobs = {ip: job for ip, job in self._jobs.items() if not job.over or now - job.began < KEEP_S}
            job = self._jobs.get(host)
            if job is not None and (job.remote, job.ports) == (remote, ports):
                return DialBackReply("done", "", host, job.reached) if job.over else PENDING
            if job is not None:
                return DialBackReply("refused", f"{host} was dialled a moment ago; ask again in {KEEP_S:g} s", host)
            running = sum(not job.over for job in self._jobs.values())
            if running >= MAX_DIAL_BACKS or len(self._jobs) >= MAX_REMEMBERED:
                return DialBackReply("refused", "busy with others; ask again later", host)
            job = self._jobs[host] = _Job(remote, ports, now)
        threading.Thread(target=self._run, args=(host, job), name="swarm-dial-back", daemon=True).start()
        return PENDING

    def _run(self, host: str, job: _Job) -> None:
        try:
            job.reached = self._dial(host, job.ports)
        finally:
            job.over = True


PENDING = DialBackReply("pending")


class _Job:
    def __init__(self, remote: str, ports: tuple[int, ...], began: float) -> None:
        self.remote = remote
        self.ports = ports
        self.began = began
        self.over = False
        self.reached: dict[int, bool] = {}


def asker_ip(multiaddrs: Iterable[str]) -> str | None:
    """The IP address of the first direct connection; None if there is none."""
    for multiaddr in multiaddrs:
        parts = multiaddr.split("/")
        if "p2p-circuit" in parts or len(parts) < 3 or parts[1] not in ("ip4", "ip6"):
            continue
        with suppress(ValueError):
            return plain_ip(parts[2])
    return None


def dial_ports(host: str, ports: Sequence[int]) -> dict[int, bool]:
    """Whether a libp2p node greets on each port; blocks for the full timeout unless all do."""
    return asyncio.run(_dial_ports(host, ports))


async def _dial_ports(host: str, ports: Sequence[int]) -> dict[int, bool]:
    began = time.monotonic()
    reached = await asyncio.gather(*(_greets(host, port) for port in ports))
    if not all(reached):
        await asyncio.sleep(began + DIAL_TIMEOUT_S - time.monotonic())
    return dict(zip(ports, reached, strict=True))


async def _greets(host: str, port: int) -> bool:
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            return await reader.readexactly(len(GREETING)) == GREETING
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return False
    finally:
        if writer is not None:
            writer.close()


complete(globals())
