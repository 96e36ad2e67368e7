"""The transport that the settings name; the library behind it is imported when it is started."""

from __future__ import annotations

from swarm.net.config import NetworkSettings
from swarm.net.identity import Identity
from swarm.net.state import Profile
from swarm.protocols import Transport


def open_transport(
    settings: NetworkSettings, identity: Identity, manifest: bytes | None = None, profile: Profile | None = None
) -> Transport:
    """A transport that has not started. Raises `ConfigError` or `TransportError` as its constructor does."""
    if settings.transport == "libp2p":
        from swarm.net.libp2p import Libp2pTransport

        return Libp2pTransport(settings, identity, manifest, profile)
    from swarm.net.hivemind import HivemindTransport

    return HivemindTransport(settings, identity, manifest, profile)
