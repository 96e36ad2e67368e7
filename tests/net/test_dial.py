from __future__ import annotations

import asyncio
import socket

import pytest

from swarm.errors import ConfigError
from swarm.net.addresses import dial as dial_module
from swarm.net.addresses.dial import Backoff, by_peer, probe, split_multiaddr
from swarm.net.records.identity import Identity

PEER = Identity.generate().peer_id


def test_multiaddrs_are_split_and_grouped_by_peer() -> None:
    assert split_multiaddr(f"/dns4/boot/tcp/31337/p2p/{PEER}") == ("/dns4/boot/tcp/31337", PEER)
    assert by_peer([f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}", f"/ip6/::1/tcp/2/p2p/{PEER}"]) == {
        PEER: ("/ip4/1.2.3.4/tcp/1", "/ip6/::1/tcp/2")
    }


@pytest.mark.parametrize(
    "address", ["", "host:1", "/ip4/1.2.3.4/tcp/1", "/ip4/1.2.3.4/tcp/1/p2p/Qm", f"/p2p/{PEER}"], ids=range(5)
)
def test_addresses_that_name_no_peer_are_refused(address: str) -> None:
    with pytest.raises(ConfigError):
        split_multiaddr(address)


def test_backoff_doubles_to_a_minute_and_forgets_on_success() -> None:
    backoff = Backoff(5.0)
    assert backoff.wait_s("a", 0.0) == 0
    waits = []
    for _ in range(6):
        backoff.failed("a", 100.0)
        waits.append(backoff.wait_s("a", 100.0))
    assert waits == [5, 10, 20, 40, 60, 60]
    assert backoff.wait_s("a", 130.0) == 30 and backoff.wait_s("a", 161.0) == 0 and backoff.wait_s("b", 100.0) == 0
    backoff.succeeded("a")
    assert backoff.wait_s("a", 100.0) == 0


def test_probe_says_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert asyncio.run(probe(f"/ip4/127.0.0.1/tcp/{port}")) is None
    assert asyncio.run(probe(f"/ip4/127.0.0.1/tcp/{port}")) == "connection refused"
    assert "unknown host" in str(asyncio.run(probe("/dns4/no-such-host.invalid/tcp/1")))
    assert asyncio.run(probe("/ip4/127.0.0.1/tcp/99999")) is not None


@pytest.mark.parametrize("host", ["a" * 70, "..", "a\0b", "\ud800", ""])
def test_hosts_that_no_look_up_accepts_are_unreachable(host: str) -> None:
    assert asyncio.run(probe(f"/dns4/{host}/tcp/1"))


def test_what_only_a_dial_can_tell_is_left_to_the_daemon() -> None:
    assert asyncio.run(probe("/ip4/127.0.0.1/udp/1/quic-v1")) is None
    assert asyncio.run(probe(f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}/p2p-circuit")) is None


def test_pauses_of_strangers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial_module, "MAX_PAUSES", 2)
    backoff = Backoff(5.0)
    for name in ("a", "b", "a", "c"):
        backoff.failed(name, 100.0)
    assert [backoff.wait_s(name, 100.0) for name in ("a", "b", "c")] == [10, 0, 5]
