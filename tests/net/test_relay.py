"""A relay and those who hold places at it, on real daemons over loopback; `test_nat.py` has the routers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from swarm.errors import PeerUnreachable
from swarm.net.hivemind.control import CircuitLimits
from swarm.net.hivemind.transport import HivemindTransport

from .records import until

pytestmark = [pytest.mark.network, pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")]

LIMITS = {"relay_circuit_bytes": 3 * 2**20, "relay_circuit_s": 77}


Start = Callable[..., HivemindTransport]


def limits_of(relay: HivemindTransport) -> CircuitLimits:
    from swarm.net.hivemind.daemon import Daemon

    async def ask() -> CircuitLimits:
        asker = await Daemon.start(listen=())
        try:
            address, _, peer_id = relay.multiaddrs()[0].rpartition("/p2p/")
            await asker.connect(peer_id, [address])
            return await asker.circuit_limits(peer_id)
        finally:
            await asker.stop()

    return asyncio.run(ask())


def test_a_relay_has_its_limits_and_other_nodes_relay_nothing(start: Start) -> None:
    relay = start("founder", serve_relay=True, **LIMITS)
    # While it is still starting a relay may answer with the daemon's own limits.
    until(lambda: limits_of(relay) == CircuitLimits(77, 3 * 2**20), "the limits are in force")
    assert "NAT" not in relay.status().detail
    with pytest.raises(PeerUnreachable, match="granted no reservation"):
        limits_of(start("peer", relay.multiaddrs()))


def test_a_node_is_asked_through_its_place_at_a_relay(start: Start) -> None:
    relay = start("founder", serve_relay=True, **LIMITS)
    hidden = start("hidden", relay.multiaddrs(), relay="always")
    hidden.serve("/test/echo", lambda remote, request: request)
    words = f"behind NAT, reachable through relay {relay.peer_id}"
    until(lambda: words in hidden.status().detail, words)
    (circuit,) = [address for address in hidden.multiaddrs() if "p2p-circuit" in address]
    # Told of nothing but the circuit, it has no other way.
    other = start("other", (circuit,))
    until(other.manifest, "the run is learned from the hidden node")
    assert other.request(hidden.peer_id, "/test/echo", b"x" * 300_000, 10.0) == b"x" * 300_000
    with pytest.raises(PeerUnreachable):
        other.request(hidden.peer_id, "/test/echo", b"x" * 2**22, 10.0)


def test_nothing_is_reserved_on_this_machine_only(start: Start) -> None:
    relay = start("founder", serve_relay=True)
    node = start("node", relay.multiaddrs())
    until(lambda: node.status().connected, "it connects")
    until(node.peers, "the directory works")
    assert not any("p2p-circuit" in address for address in node.multiaddrs()) and "NAT" not in node.status().detail
