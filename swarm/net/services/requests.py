"""Short requests between members: the run's manifest and peer exchange.

Any member answers with the manifest as its founder sealed it, and with the signed records of peers that it knows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from swarm.errors import OtherRun, PeerUnreachable, Refusal
from swarm.net.records.envelope import joined
from swarm.net.records.large import Fetch
from swarm.net.records.wire import MAX_PEER_RECORD_BYTES, SealedManifest, open_manifest, open_peer_record
from swarm.net.runtime import AsyncRuntime
from swarm.reasons import Reason
from swarm.types import PeerRecord

MANIFEST_PROTOCOL = "/swarm/manifest/1"
PEERS_PROTOCOL = "/swarm/peers/1"
HEARTBEAT_PROTOCOL = "/swarm/heartbeat/1"
ASK_PROTOCOL = "/swarm/snapshots/ask/1"
ANNOUNCE_PROTOCOL = "/swarm/snapshots/announce/1"
"""Workers' reports, and questions and news about snapshots: served by an extra, with the precedence of the others."""
MAX_PEERS = 64
MAX_ANSWER_BYTES = MAX_PEERS * (MAX_PEER_RECORD_BYTES + 8)
SealedRecords = Annotated[list[Annotated[bytes, Meta(max_length=MAX_PEER_RECORD_BYTES)]], Meta(max_length=MAX_PEERS)]


async def ask_for_manifest(
    peers: Mapping[str, tuple[str, ...]],
    ask: Callable[[str, tuple[str, ...]], Awaitable[bytes]],
    run_id: str | None,
    timeout_s: float,
    runtime: AsyncRuntime,
) -> SealedManifest:
    """The first manifest of `peers`, asked in order; `ask(peer_id, addresses)` gets it sealed.

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
                    return SealedManifest(sealed, open_manifest(sealed, run_id))
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
