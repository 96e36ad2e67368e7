"""The transport that the settings name; the library behind it is imported when it is started."""

from __future__ import annotations

from swarm.net.config import NetworkSettings
from swarm.net.hivemind import HivemindTransport
from swarm.net.identity import Identity
from swarm.net.libp2p import Libp2pTransport
from swarm.net.state import Profile

NetworkTransport = HivemindTransport | Libp2pTransport


def open_transport(
    settings: NetworkSettings, identity: Identity, manifest: bytes | None = None, profile: Profile | None = None
) -> NetworkTransport:
    """A transport that has not started. Raises `ConfigError` or `TransportError` as its constructor does."""
    backend = Libp2pTransport if settings.transport == "libp2p" else HivemindTransport
    return backend(settings, identity, manifest, profile)
