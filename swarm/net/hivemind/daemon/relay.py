"""Starting a relay daemon and checking that it applies the configured limits."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from swarm.errors import PeerUnreachable, TransportError
from swarm.net.config import NetworkSettings
from swarm.net.hivemind.daemon.circuit import CircuitLimits
from swarm.net.hivemind.daemon.process import Daemon

logger = logging.getLogger(__name__)

MAX_TRIES = 16
ANY_HOST = {"/ip4/0.0.0.0/": "/ip4/127.0.0.1/", "/ip6/::/": "/ip6/::1/"}


async def start_relay(
    start: Callable[..., Awaitable[Daemon]], listen: Sequence[str], settings: NetworkSettings
) -> Daemon:
    """A daemon whose circuits have the limits of `settings`, verified by a request. Raises `TransportError`.

    The daemon starts two relays, one with our limits and one with its defaults of two minutes and 128 KiB; the one that
    is ready last serves. So we check, and retry. On one processor ours wins five times in six, on two hardly ever.
    """
    wanted = CircuitLimits(settings.relay_circuit_s, settings.relay_circuit_bytes)
    for _ in range(MAX_TRIES):
        daemon = await start(processors=1)
        try:
            limits = await _limits_of(daemon, tuple(map(_from_here, listen)))
        except PeerUnreachable as error:
            logger.warning("the limits of this relay could not be checked and may be lower than configured: %s", error)
            return daemon
        except BaseException:
            await daemon.stop()
            raise
        if limits == wanted:
            return daemon
        await daemon.stop()
    raise TransportError(
        f"the relay daemon started {MAX_TRIES} times with the limits {limits} instead of {wanted}; start it again"
    )


async def _limits_of(daemon: Daemon, addresses: Sequence[str]) -> CircuitLimits:
    """The limits that this relay reports to a stranger. Raises `PeerUnreachable`.

    A new stranger each time: a node that lost a connection to a peer waits before it dials that peer again.
    """
    asker = await Daemon.start(listen=())
    try:
        await asker.connect(daemon.peer_id, addresses)
        return await asker.circuit_limits(daemon.peer_id)
    finally:
        await asker.stop()


def _from_here(listen: str) -> str:
    for anywhere, here in ANY_HOST.items():
        listen = listen.replace(anywhere, here)
    return listen
