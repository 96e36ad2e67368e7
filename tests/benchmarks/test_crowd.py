"""The crowd at a bootstrap: a light peer is a peer to a real daemon, and the long run is known by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.scale.__main__ import main
from benchmarks.scale.bootstrap import KEPT, steady
from benchmarks.scale.light_peer import LightPeer
from swarm.errors import PeerUnreachable
from swarm.net.hivemind.daemon import Daemon
from swarm.net.membership.dialling import APART, MAX_PAUSE_S
from swarm.net.records.feed import HELLO_PROTOCOL, Hello, encode
from swarm.net.records.identity import Identity

RUN_ID = "test-run"
PATIENCE_S = 30.0


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await asyncio.sleep(0.05)


@pytest.mark.network
def test_a_light_peer_is_a_member_to_a_daemon_and_notices_that_it_is_hung_up_on() -> None:
    async def meet() -> None:
        daemon = await Daemon.start(listen=("/ip4/127.0.0.1/tcp/0",))
        try:
            (address,) = await daemon.addresses()
            peers = [LightPeer(Identity.generate(), RUN_ID) for _ in range(3)]
            hello = encode(Hello(RUN_ID, True))
            everyone = {peer.identity.peer_id for peer in peers}

            async def known() -> bool:
                return everyone == await daemon.connected() and all([await is_member(name) for name in everyone])

            async def is_member(name: str) -> bool:
                with suppress(PeerUnreachable):
                    return await daemon.call(name, HELLO_PROTOCOL, hello, 10.0) == hello
                return False

            async def gone() -> bool:
                return not peers[0].connected

            await asyncio.gather(*(peer.connect(address) for peer in peers))
            await until(known)
            await daemon.disconnect(peers[0].identity.peer_id)
            await until(gone)
            assert peers[1].connected and peers[2].connected
            await peers[0].connect(address)
            await until(known)
            for peer in peers:
                peer.close()
        finally:
            await daemon.stop()

    asyncio.run(meet())


def test_a_light_peer_says_why_it_cannot_connect() -> None:
    with pytest.raises(PeerUnreachable, match="/ip4/127.0.0.1/tcp/1: connection refused"):
        asyncio.run(LightPeer(Identity.generate(), RUN_ID).connect("/ip4/127.0.0.1/tcp/1"))


def test_in_the_long_run_a_crowd_returns_as_seldom_as_the_longest_pause_says() -> None:
    assert steady(KEPT, 130.0).redials_per_s == 0.0
    found = steady(10_000, 130.0)
    seldom, often = ((10_000 - KEPT) / (factor * MAX_PAUSE_S + 130.0) for factor in reversed(APART))
    assert seldom < found.redials_per_s < 1.1 * often, "the first pauses of the day are shorter"
    assert found.connections == pytest.approx(KEPT + 130.0 * found.redials_per_s)


@pytest.mark.slow
@pytest.mark.network
def test_a_quick_run(tmp_path: Path) -> None:
    assert main(["--quick", "--only", "bootstrap", "--out", str(tmp_path / "scale.json")]) == 0
    values = {row["what"]: row["value"] for row in json.loads((tmp_path / "scale.json").read_text())["rows"]}
    what = "20 peers at one bootstrap"
    assert values[f"{what}: strangers without an answer"] == values[f"{what}: redials that failed"] == 0
    assert values[f"{what}: connections that a real member made"] == 1
    assert values[f"{what}: a newcomer has joined"] is not None
