"""Fetching a run's manifest with py-libp2p; see `backends`.

Importing this imports libp2p; see `host`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import trio

from swarm.errors import PeerUnreachable, Refusal, TransportError
from swarm.net.guard import Counters
from swarm.net.libp2p.host import Host, open_host
from swarm.net.records.identity import KEY_BYTES
from swarm.net.records.wire import MAX_MANIFEST_BYTES, open_manifest
from swarm.net.services.requests import MANIFEST_PROTOCOL, no_manifest
from swarm.types import RunManifest


def fetch(peers: Mapping[str, tuple[str, ...]], timeout_s: float, run_id: str | None) -> tuple[RunManifest, bytes]:
    """The first manifest that a peer has, decoded and as its founder sealed it. Raises `PeerUnreachable`."""
    found: list[tuple[RunManifest, bytes]] = []
    failures: list[str] = []
    refusals: list[Refusal] = []

    async def ask_all() -> None:
        with trio.move_on_after(timeout_s) as limit:
            # It does not listen, so any key will do.
            async with open_host(secrets.token_bytes(KEY_BYTES), (), (), Counters()) as host:
                for peer_id, addresses in peers.items():
                    try:
                        found.append(await _ask(host, peer_id, addresses, timeout_s, run_id))
                        return
                    except PeerUnreachable as error:
                        failures.append(str(error))
                    except Refusal as refusal:
                        refusals.append(refusal)
                        failures.append(f"{', '.join(addresses)}: its manifest was refused: {refusal}")
        if limit.cancelled_caught:
            failures.append(f"no answer within {timeout_s:g} s")

    try:
        trio.run(ask_all)
    except ExceptionGroup as group:
        raise TransportError(f"the network could not be started: {group.exceptions[0]!r}") from group
    if not found:
        raise no_manifest(failures, refusals)
    return found[0]


async def _ask(
    host: Host, peer_id: str, addresses: tuple[str, ...], timeout_s: float, run_id: str | None
) -> tuple[RunManifest, bytes]:
    await host.connect(peer_id, addresses)
    sealed = await host.call(peer_id, MANIFEST_PROTOCOL, b"", timeout_s, MAX_MANIFEST_BYTES)
    if not sealed:
        raise PeerUnreachable(f"{', '.join(addresses)}: it does not know the run yet")
    return open_manifest(sealed, run_id), sealed
