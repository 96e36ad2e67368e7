"""Visits to runs: requests to their members by a network that leaves no trace."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nodes.boot.directory import IDENTITY_FILE
from swarm.net.config import NetworkSettings
from swarm.net.hivemind.transport import HivemindTransport
from swarm.net.membership.member import Profile
from swarm.net.records.identity import Identity


@contextlib.contextmanager
def visiting(settings: NetworkSettings) -> Iterator[HivemindTransport]:
    """Yield a started transport that leaves no trace. Raises `TransportError` when the network cannot start."""
    with tempfile.TemporaryDirectory(prefix="swarm-visit-") as folder:
        identity = Identity.load_or_create(Path(folder) / IDENTITY_FILE)
        transport = HivemindTransport(settings, identity, profile=Profile(role="visitor", listed=False))
        try:
            transport.start()
            yield transport
        finally:
            transport.close()
            identity.close()


def visitor_settings(bootstraps: tuple[str, ...]) -> NetworkSettings:
    """Settings of a visitor that does not listen; it only sends requests."""
    return NetworkSettings(
        bootstrap=bootstraps, listen=(), nat_port_map=False, retry_s=1.0, announce_every_s=2.0, relay="off"
    )
