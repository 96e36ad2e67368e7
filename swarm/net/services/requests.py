"""Short requests between members: the run's manifest, peer exchange and heartbeats.

Any member answers with the manifest as its founder sealed it, and with the signed records of peers that it knows.
Workers report to their learner with heartbeats and receive orders; the transport names the asker, and the learner is
addressed by its peer id.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from swarm.errors import OtherRun, PeerUnreachable, Refusal, TransportError
from swarm.net.records.envelope import joined
from swarm.net.records.large import Fetch
from swarm.net.records.wire import MAX_PEER_RECORD_BYTES, open_manifest, open_peer_record
from swarm.net.runtime import AsyncRuntime
from swarm.protocols import RequestTransport
from swarm.reasons import Reason
from swarm.types import Heartbeat, Orders, PeerRecord, RunManifest

HEARTBEAT_PROTOCOL = "/swarm/heartbeat/1"
TIMEOUT_S = 5.0
LONGEST_BACKOFF_S = 15.0
MAX_DOUBLINGS = 16
"""Beyond this the pause is `LONGEST_BACKOFF_S` anyway; after some hours, the power would not fit into a float."""
GONE_AFTER = 3
"""The learner counts as away after this many unanswered heartbeats in a row."""
MANIFEST_PROTOCOL = "/swarm/manifest/1"
PEERS_PROTOCOL = "/swarm/peers/1"
MAX_PEERS = 64
MAX_ANSWER_BYTES = MAX_PEERS * (MAX_PEER_RECORD_BYTES + 8)
SealedRecords = Annotated[list[Annotated[bytes, Meta(max_length=MAX_PEER_RECORD_BYTES)]], Meta(max_length=MAX_PEERS)]


def serve_heartbeats(transport: RequestTransport, beat: Callable[[str, Heartbeat], Orders]) -> None:
    """Answer workers with the result of `beat`, which must not block."""

    def answer(peer_id: str, request: bytes) -> bytes:
        return msgspec.msgpack.encode(beat(peer_id, msgspec.msgpack.decode(request, type=Heartbeat)))

    transport.serve(HEARTBEAT_PROTOCOL, answer)


class Heartbeats:
    """A thread that reports to the learner regularly, and backs off while it does not answer."""

    def __init__(
        self, transport: RequestTransport, learner: str, report: Callable[[], Heartbeat], every_s: float = 1.0
    ) -> None:
        """Start the thread; it calls `report`."""
        self._transport = transport
        self._learner = learner
        self._report = report
        self._every_s = every_s
        self._orders: Orders | None = None
        self._failures = 0
        self._closed = False
        self._news = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)
        self._thread.start()

    @property
    def orders(self) -> Orders | None:
        """The learner's last orders; None before the first and while it is away."""
        return self._orders

    @property
    def away(self) -> bool:
        """Whether the learner has not answered for several heartbeats."""
        return self._failures >= GONE_AFTER

    def soon(self) -> None:
        """Report at once."""
        self._news.set()

    def close(self) -> None:
        """Stop reporting."""
        self._closed = True
        self._news.set()
        self._thread.join(TIMEOUT_S + 1)

    def _run(self) -> None:
        while not self._closed:
            doublings = min(MAX_DOUBLINGS, max(0, self._failures - 1))
            self._news.wait(min(LONGEST_BACKOFF_S, self._every_s * 2**doublings))
            self._news.clear()
            if not self._closed:
                self._beat()

    def _beat(self) -> None:
        try:
            request = msgspec.msgpack.encode(self._report())
            answer = self._transport.request(self._learner, HEARTBEAT_PROTOCOL, request, TIMEOUT_S)
            self._orders = msgspec.msgpack.decode(answer, type=Orders)
            self._failures = 0
        except (TransportError, ValueError, RecursionError):
            # msgspec and UTF-8 decoding raise ValueError for an invalid answer.
            self._failures += 1
            if self.away:
                self._orders = None


async def ask_for_manifest(
    peers: Mapping[str, tuple[str, ...]],
    ask: Callable[[str, tuple[str, ...]], Awaitable[bytes]],
    run_id: str | None,
    timeout_s: float,
    runtime: AsyncRuntime,
) -> tuple[RunManifest, bytes]:
    """The first manifest of `peers`, asked in order, decoded and sealed; `ask(peer_id, addresses)` gets it sealed.

    Raises `PeerUnreachable` with every address and its failure.
    """
    failures: list[str] = []
    refusals: list[Refusal] = []
    try:
        async with runtime.timeout(timeout_s):
            for peer_id, addresses in peers.items():
                try:
                    if not (sealed := await ask(peer_id, addresses)):
                        raise PeerUnreachable(f"{', '.join(addresses)}: it does not know the run yet")
                    return open_manifest(sealed, run_id), sealed
                except PeerUnreachable as error:
                    failures.append(str(error))
                except Refusal as refusal:
                    refusals.append(refusal)
                    failures.append(f"{', '.join(addresses)}: its manifest was refused: {refusal}")
    except TimeoutError:
        failures.append(f"no answer within {timeout_s:g} s")
    raise no_manifest(failures, refusals)


def no_manifest(failures: Sequence[str], refusals: Sequence[Refusal] = ()) -> PeerUnreachable:
    """The error that lists every address with its failure; `refusals` are those of received manifests."""
    if refusals and len(refusals) == len(failures) and all(each.reason == Reason.WRONG_RUN for each in refusals):
        return OtherRun(f"the members asked are in another run: {'; '.join(failures)}")
    split = next((refusal.detail for refusal in refusals if refusal.reason == Reason.SCHEMA_VERSION), None)
    what = (
        f"this run cannot be joined: {split}"
        if split
        else "no peer sent the manifest of its run; check the addresses, and that one of the peers is up"
    )
    return PeerUnreachable(f"{what}: {'; '.join(failures)}")


def answer_peers(sealed_records: Sequence[bytes]) -> bytes:
    """The first records, up to the limit of an answer."""
    return msgspec.msgpack.encode(sealed_records[:MAX_PEERS])


async def ask_peers(fetch: Fetch, peer_id: str, run_id: str, now: float) -> list[tuple[PeerRecord, bytes]]:
    """Records of peers that a peer knows, decoded and as signed; expired or forged ones are dropped.

    Raises `PeerUnreachable`.
    """
    answer = await joined(fetch(peer_id, PEERS_PROTOCOL, b"", MAX_ANSWER_BYTES))
    try:
        sealed_records = msgspec.msgpack.decode(answer, type=SealedRecords)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise PeerUnreachable(f"its list of peers cannot be read: {error}") from error
    found = []
    for sealed in sealed_records:
        try:
            found.append((open_peer_record(sealed, run_id, now=now), sealed))
        except Refusal:
            continue
    return found
