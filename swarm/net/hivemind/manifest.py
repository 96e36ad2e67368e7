"""Fetching a run's manifest with hivemind's daemon; see `backends`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from swarm.errors import PeerUnreachable, Refusal
from swarm.net.addresses.dial import probe
from swarm.net.records.wire import open_manifest
from swarm.net.services.manifest import MANIFEST_PROTOCOL, no_manifest
from swarm.types import RunManifest

if TYPE_CHECKING:
    from swarm.net.hivemind.daemon.process import Daemon


Peers = Mapping[str, tuple[str, ...]]
"""Multiaddrs by peer id."""


def fetch(peers: Peers, timeout_s: float, run_id: str | None) -> tuple[RunManifest, bytes]:
    """The first manifest that a peer has, decoded and as its founder sealed it. Raises `PeerUnreachable`."""
    return asyncio.run(_fetch(peers, timeout_s, run_id))


async def _fetch(
    peers: Mapping[str, tuple[str, ...]], timeout_s: float, run_id: str | None
) -> tuple[RunManifest, bytes]:
    addresses = [address for group in peers.values() for address in group]
    problems = await asyncio.gather(*map(probe, addresses))
    if all(problems):
        # Checked before hivemind is imported: wrong addresses are common, and this finds them without the slow import.
        raise no_manifest([f"{address}: {problem}" for address, problem in zip(addresses, problems, strict=True)])
    from swarm.net.hivemind.daemon.process import Daemon, quiet_hivemind

    quiet_hivemind()
    daemon = await Daemon.start(listen=())
    failures: list[str] = []
    refusals: list[Refusal] = []
    try:
        async with asyncio.timeout(timeout_s):
            for peer_id, group in peers.items():
                try:
                    sealed = await _ask(daemon, peer_id, group, timeout_s)
                    return open_manifest(sealed, run_id), sealed
                except PeerUnreachable as error:
                    failures.append(str(error))
                except Refusal as refusal:
                    refusals.append(refusal)
                    failures.append(f"{', '.join(group)}: its manifest was refused: {refusal}")
    except TimeoutError:
        failures.append(f"no answer within {timeout_s:g} s")
    finally:
        await daemon.stop()
    raise no_manifest(failures, refusals)


async def _ask(daemon: Daemon, peer_id: str, addresses: Sequence[str], timeout_s: float) -> bytes:
    await daemon.connect(peer_id, addresses)
    sealed = await daemon.call(peer_id, MANIFEST_PROTOCOL, b"", timeout_s)
    if not sealed:
        raise PeerUnreachable(f"{', '.join(addresses)}: it does not know the run yet")
    return sealed
