"""The stranger of these tests reaches live nodes by every way there is: what it proves of others rests on that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from swarm.net.records.envelope import encode_request
from swarm.net.records.repair import HAVE_PROTOCOL, HaveRequest
from swarm.net.services.requests import MANIFEST_PROTOCOL
from tests.net.records import until
from tests.nodes.processes import Swarm, address_of

from .stranger import Stranger

pytestmark = [pytest.mark.slow, pytest.mark.network]


def test_a_stranger_reaches_a_live_node(
    tmp_path: Path, victims: Callable[..., Swarm], strangers: Callable[..., Stranger]
) -> None:
    address = address_of(victims(tmp_path / "bootstrap", "bootstrap", "examples/tiny.yaml"))
    peer = victims(tmp_path / "peer", "join", address, "--evaluation.num_questions=0")
    stranger = strangers()
    bootstrap, victim = stranger.connect(address, address_of(peer))
    run_id = stranger.manifest(bootstrap).run_id
    assert stranger.manifest(victim).run_id == run_id
    stranger.follow(run_id)
    until(lambda: any(sender == victim for sender, _ in stranger.heard), "gossip of the peer")
    asked = msgspec.msgpack.encode(HaveRequest(60.0))
    until(lambda: len(stranger.request(victim, HAVE_PROTOCOL, asked)) > 1, "records held")
    stream = stranger.open_stream(victim, MANIFEST_PROTOCOL)
    stream.send(encode_request(b""))
    assert stream.read()
    assert stranger.dht(victim, lambda dht, peer_id: dht.call_ping(peer_id)) is not None
