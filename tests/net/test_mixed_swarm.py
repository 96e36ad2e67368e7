"""Nodes on hivemind's daemon and nodes on py-libp2p in one swarm: real processes, real groups."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from swarm.net.services.requests import MANIFEST_PROTOCOL, PEERS_PROTOCOL
from tests.libp2p_process import NOT_INSTALLED

from .records import LOOPBACK, until

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("libp2p") is None, reason=NOT_INSTALLED),
]

Status = dict[str, object]


class Node:
    """A process of `driven_node.py`."""

    def __init__(self, transport: str, folder: Path, name: str, listen: str, manifest: str, bootstrap: str) -> None:
        script = Path(__file__).with_name("driven_node.py")
        self.transport, self.name = transport, name
        self.process = subprocess.Popen(
            [sys.executable, str(script), transport, str(folder), name, listen, manifest, bootstrap],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.peer_id, self.multiaddrs = self._line()

    def _line(self):  # type: ignore[no-untyped-def]
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process of the {self.transport} node {self.name} ended with {self.process.wait()}"
        return json.loads(line)

    def do(self, order: str, **arguments: object):  # type: ignore[no-untyped-def]
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": order, **arguments}) + "\n")
        self.process.stdin.flush()
        return self._line()

    def connected(self) -> set[str]:
        return set(self.do("status")["connected"])

    def arrived(self) -> list[tuple[str, int]]:
        return [(peer_id, sequence) for peer_id, sequence, _ in self.do("status")["arrived"]]

    def count(self, name: str) -> int:
        return int(self.do("status")["counters"].get(name, 0))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


Start = Callable[..., Node]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    nodes: list[Node] = []

    def start_one(
        transport: str,
        name: str,
        bootstrap: tuple[Node, ...] = (),
        listen: str = LOOPBACK[0],
        manifest: str = "",
    ) -> Node:
        addresses = ",".join(address for node in bootstrap for address in node.multiaddrs)
        node = Node(transport, tmp_path, name, listen, manifest, addresses)
        nodes.append(node)
        return node

    yield start_one
    for node in nodes:
        node.kill()


def meet(*nodes: Node) -> None:
    everyone = {node.peer_id for node in nodes}
    for node in nodes:
        until(lambda node=node: node.connected() == everyone - {node.peer_id}, "everyone is connected to everyone")


def test_groups_cross_between_the_networks_both_ways(start: Start) -> None:
    h1 = start("hivemind", "h1", manifest="founder")
    # The others know h1 alone: it tells them which run this is, and each of them whom else there is.
    h2, l1, l2 = start("hivemind", "h2", (h1,)), start("libp2p", "l1", (h1,)), start("libp2p", "l2", (h1,))
    nodes = (h1, h2, l1, l2)
    meet(*nodes)

    per_node = 20
    for sequence in range(per_node):
        for node in nodes:
            assert node.do("share", sequence=sequence, size=(1_000, 16_000, 150_000)[sequence % 3])["shared"]
    for node in nodes:
        expected = {(other.peer_id, sequence) for other in nodes if other is not node for sequence in range(per_node)}
        until(lambda node=node, expected=expected: set(node.arrived()) >= expected, "every group of the others arrives")
        status = node.do("status")
        assert len(node.arrived()) == len(expected) and status["refused"] == {}
        assert not status["counters"].get("network_restarts") and not status["counters"].get("daemon_restarts")
        print(node.transport, "was reached", {kind: delays(node, nodes, kind) for kind in ("hivemind", "libp2p")})

    for asker, asked in ((h1, l1), (l1, h1), (l1, l2)):
        sizes = [asker.do("request", peer=asked.peer_id, protocol=name) for name in (MANIFEST_PROTOCOL, PEERS_PROTOCOL)]
        assert all(size.get("size", 0) > 100 for size in sizes)
        assert "error" in asker.do("request", peer=asked.peer_id, protocol="/swarm/nothing/1")

    # Too large for gossip: fetched from whoever has it, on either network.
    h1.do("publish_junk", size=3_000_000)
    l1.do("publish_junk", size=3_000_000)
    for node in nodes:
        wanted = 1 if node in (h1, l1) else 2
        until(lambda node=node, wanted=wanted: node.count("fetched") == wanted, "large records arrive")


def delays(receiver: Node, nodes: tuple[Node, ...], kind: str) -> str:
    senders = {node.peer_id for node in nodes if node.transport == kind}
    found = sorted(delay for peer_id, _, delay in receiver.do("status")["arrived"] if peer_id in senders)
    return f"median {found[len(found) // 2]:.3f} s, last {found[-1]:.3f} s"


@pytest.mark.parametrize("founding, joining", [("hivemind", "libp2p"), ("libp2p", "hivemind")])
def test_what_gossip_lost_is_had_by_asking(start: Start, founding: str, joining: str) -> None:
    first = start(founding, "deaf 1", manifest="founder")
    second = start(joining, "deaf 2", (first,))
    meet(first, second)
    began = time.monotonic()
    for sequence in range(20):
        for node in (first, second):
            assert node.do("share", sequence=sequence, size=16_000)["shared"]
    for node in (first, second):
        until(lambda node=node: len(node.arrived()) == 20, "every group arrives by repair")
        assert node.count("delivered") == 0 and node.count("repaired") == 20
    print("repaired 20 groups each way", f"{time.monotonic() - began:.1f} s after the first was shared")
    # Who comes late asks for what was before. It is deaf too: gossip repeats what is a few seconds old.
    late = start(founding, "deaf 3", (second,))
    until(lambda: len(late.arrived()) == 40, "the late one gets all")
    assert late.count("delivered") == 0 and late.count("backfilled") == 40


def test_a_banned_peer_of_the_other_network_is_not_heard(start: Start) -> None:
    h1 = start("hivemind", "h1", manifest="founder")
    l1 = start("libp2p", "l1", (h1,))
    for banning, banned in ((h1, l1), (l1, h1)):
        meet(h1, l1)
        heard = len(banning.arrived())
        banning.do("ban", peers=[banned.peer_id])
        until(lambda banning=banning: not banning.connected(), "they part")
        banned.do("share", sequence=heard, size=1_000)
        assert "error" in banned.do("request", peer=banning.peer_id, protocol=MANIFEST_PROTOCOL)
        assert len(banning.arrived()) == heard
        banning.do("ban", peers=[])


def test_a_killed_libp2p_node_comes_back_with_its_identity_and_is_heard(start: Start) -> None:
    h1 = start("hivemind", "h1", manifest="founder")
    l1 = start("libp2p", "l1", (h1,))
    l2 = start("libp2p", "l2", (h1,))
    meet(h1, l1, l2)
    for sequence in range(30):
        l1.do("share", sequence=sequence, size=1_000)
    for node in (h1, l2):
        until(lambda node=node: len(node.arrived()) == 30, "groups arrive before")
    l1.kill()
    for node in (h1, l2):
        until(lambda node=node: l1.peer_id not in node.connected(), "the loss is seen")
    again = start("libp2p", "l1", (h1,), listen=l1.multiaddrs[0].split("/p2p/")[0])
    assert again.peer_id == l1.peer_id and again.multiaddrs == l1.multiaddrs
    meet(h1, again, l2)
    # Message numbers that started anew would be taken for those seen before.
    for sequence in range(30, 60):
        again.do("share", sequence=sequence, size=1_000)
    for node in (h1, l2):
        until(lambda node=node: len(node.arrived()) == 60, "every group arrives after")
    h1.do("share", sequence=0, size=1_000)
    until(lambda: (h1.peer_id, 0) in again.arrived(), "and it hears the others")
