"""Getting a run's manifest from any of its members."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from swarm.errors import PeerUnreachable, RejectedGroup
from swarm.net.dial import by_peer, probe
from swarm.net.wire import open_manifest
from swarm.types import RunManifest

if TYPE_CHECKING:
    from swarm.net.daemon import Daemon

MANIFEST_PROTOCOL = "/swarm/manifest/1"


def fetch_manifest(
    multiaddrs: Sequence[str],
    timeout_s: float,
    *,
    run_id: str | None = None,
    transport: Literal["hivemind", "libp2p"] = "hivemind",
) -> tuple[RunManifest, bytes]:
    """A run's manifest, and as its founder sealed it, from the first of `multiaddrs` that has it.

    Starts and stops a network of its own. Raises `PeerUnreachable` with every address and how it failed, `ConfigError`
    for an address that names no peer, `TransportError` when the network cannot be started.
    """
    if transport == "libp2p":
        # Imported here because it imports libp2p, which cannot be in one process with hivemind.
        from swarm.net.libp2p_manifest import fetch

        return fetch(by_peer(multiaddrs), timeout_s, run_id)
    return asyncio.run(_fetch(by_peer(multiaddrs), timeout_s, run_id))


async def _fetch(peers: dict[str, tuple[str, ...]], timeout_s: float, run_id: str | None) -> tuple[RunManifest, bytes]:
    addresses = [address for group in peers.values() for address in group]
    problems = await asyncio.gather(*map(probe, addresses))
    if all(problems):
        # Said before hivemind is imported: a wrong address is the common case, and takes no seconds to find.
        raise nobody([f"{address}: {problem}" for address, problem in zip(addresses, problems, strict=True)])
    from swarm.net.daemon import Daemon, quiet_hivemind

    quiet_hivemind()
    daemon = await Daemon.start(listen=())
    failures: list[str] = []
    try:
        async with asyncio.timeout(timeout_s):
            for peer_id, group in peers.items():
                try:
                    sealed = await _ask(daemon, peer_id, group, timeout_s)
                    return open_manifest(sealed, run_id), sealed
                except PeerUnreachable as error:
                    failures.append(str(error))
                except RejectedGroup as refusal:
                    failures.append(f"{', '.join(group)}: its manifest was refused: {refusal}")
    except TimeoutError:
        failures.append(f"no answer within {timeout_s:g} s")
    finally:
        await daemon.stop()
    raise nobody(failures)


async def _ask(daemon: Daemon, peer_id: str, addresses: Sequence[str], timeout_s: float) -> bytes:
    await daemon.connect(peer_id, addresses)
    sealed = await daemon.call(peer_id, MANIFEST_PROTOCOL, b"", timeout_s)
    if not sealed:
        raise PeerUnreachable(f"{', '.join(addresses)}: it does not know the run itself yet")
    return sealed


def nobody(failures: Sequence[str]) -> PeerUnreachable:
    """The error that names every address and how it failed."""
    return PeerUnreachable(
        "no peer could tell which run this is; check the addresses, and that one of them is up: " + "; ".join(failures)
    )
