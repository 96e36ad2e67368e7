"""The network backend that the settings select; its library is imported on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Literal, TypeVar

from swarm.errors import TransportError
from swarm.kinds import Kinds
from swarm.net.addresses.dial import by_peer
from swarm.net.config import NetworkSettings
from swarm.net.membership.member import Profile
from swarm.net.membership.transport import MemberTransport
from swarm.net.records.identity import Identity
from swarm.net.records.wire import SealedManifest

T = TypeVar("T")

TRANSPORTS: Kinds[type[MemberTransport]] = Kinds(
    "transport",
    "swarm.transports",
    "swarm.net.membership.transport:MemberTransport",
    {
        "hivemind": "swarm.net.hivemind.transport:HivemindTransport",
        "libp2p": "swarm.extras.libp2p.transport:Libp2pTransport",
    },
)
"""Transports by their name in `network.transport`; neither library is imported by its module."""


def open_transport(
    settings: NetworkSettings,
    identity: Identity,
    manifest: SealedManifest | None = None,
    profile: Profile | None = None,
) -> MemberTransport:
    """A transport that has not started. Raises `ConfigError` or `TransportError` as its constructor does."""
    return _backend(settings.transport)(settings, identity, manifest, profile)


def fetch_manifest(
    multiaddrs: Sequence[str],
    timeout_s: float,
    *,
    run_id: str | None = None,
    transport: Literal["hivemind", "libp2p"] = "hivemind",
) -> SealedManifest:
    """A run's manifest, from the first of `multiaddrs` that has it.

    Starts and stops its own network. Raises `PeerUnreachable` with every address and its failure, `ConfigError` for an
    address without a valid peer id, `TransportError` if the network cannot be started.
    """
    peers = by_peer(multiaddrs)
    return _outside_loops(partial(_backend(transport).fetch_manifest, peers, timeout_s, run_id))


def _backend(name: str) -> type[MemberTransport]:
    try:
        return TRANSPORTS.find(name)
    except (ModuleNotFoundError, ValueError) as error:
        raise TransportError(f"network.transport {name} is not installed: {error}") from error


def _outside_loops(action: Callable[[], T]) -> T:
    """Call what runs an event loop: in another thread if this one is running a loop, as a notebook's cells do."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass  # not called here: this error would be the context of its own
    else:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(action).result()
    return action()
