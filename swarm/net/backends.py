"""The network backend that the settings select; its library is imported on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Literal, TypeVar

from swarm.extras.libp2p.transport import Libp2pTransport
from swarm.net.addresses.dial import by_peer
from swarm.net.config import NetworkSettings
from swarm.net.hivemind.transport import HivemindTransport
from swarm.net.membership.member import Profile
from swarm.net.records.identity import Identity
from swarm.types import RunManifest

NetworkTransport = HivemindTransport | Libp2pTransport
T = TypeVar("T")


def open_transport(
    settings: NetworkSettings, identity: Identity, manifest: bytes | None = None, profile: Profile | None = None
) -> NetworkTransport:
    """A transport that has not started. Raises `ConfigError` or `TransportError` as its constructor does."""
    backend = Libp2pTransport if settings.transport == "libp2p" else HivemindTransport
    return backend(settings, identity, manifest, profile)


def fetch_manifest(
    multiaddrs: Sequence[str],
    timeout_s: float,
    *,
    run_id: str | None = None,
    transport: Literal["hivemind", "libp2p"] = "hivemind",
) -> tuple[RunManifest, bytes]:
    """A run's manifest, decoded and as its founder sealed it, from the first of `multiaddrs` that has it.

    Starts and stops its own network. Raises `PeerUnreachable` with every address and its failure, `ConfigError` for an
    address without a valid peer id, `TransportError` if the network cannot be started.
    """
    peers = by_peer(multiaddrs)
    # A process can import only one of the two libraries.
    if transport == "libp2p":
        from swarm.extras.libp2p.transport import fetch
    else:
        from swarm.net.hivemind.transport import fetch
    return _with_a_loop_of_its_own(partial(fetch, peers, timeout_s, run_id))


def _with_a_loop_of_its_own(action: Callable[[], T]) -> T:
    """Call what runs an event loop: in another thread where this one is running a loop, as a notebook's cells do."""
    if not _runs_a_loop():
        return action()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(action).result()


def _runs_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
