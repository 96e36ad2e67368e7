"""Nodes on hivemind's daemon and nodes on py-libp2p in one swarm: real processes, real groups."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from swarm.net.manifest import MANIFEST_PROTOCOL
from swarm.net.peers import PEERS_PROTOCOL

from .records import LOOPBACK, until

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("libp2p") is None, reason="py-libp2p is not installed: pip install libp2p==0.8.1"),
]

Status = dict[str, object]


class Node:
    """A process of `driven_node.py`."""

    def __init__(self, transport: str, folder: Path, name: str, listen: str, manifest: str, bootstrap: str) -> None:
        script = Path(__file__).with_name("driven_node.py")
        self.transport = transport
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
        assert line, "the node's process ended"
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


def test_groups_cross_between_the_networks_both_ways(start: Start, tmp_path: Path) -> None:
    h1 = start("hivemind", "h1", manifest="founder")
    h2 = start("hivemind", "h2", (h1,))
    # Until hivemind nodes serve raw streams (branch `core`) a libp2p node cannot ask them for the run, nor whom they
    # know. Once they do: leave `manifest` out, give h1 alone as bootstrap, and expect the sizes of both replies below.
    path = tmp_path / "run.manifest"
    h1.do("save_manifest", path=str(path))
    l1 = start("libp2p", "l1", (h1, h2), manifest=str(path))
    l2 = start("libp2p", "l2", (h1, h2), manifest=str(path))
    nodes = (h1, h2, l1, l2)
    # l2 hears of l1 in neither way yet: hivemind nodes do not know libp2p nodes' records.
    for node, others in ((h1, nodes), (h2, nodes), (l1, (h1, h2)), (l2, (h1, h2))):
        wanted = {other.peer_id for other in others} - {node.peer_id}
        until(lambda node=node, wanted=wanted: node.connected() >= wanted, "the networks are connected")

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

    assert "error" in h1.do("request", peer=l1.peer_id, protocol="/swarm/nothing/1")
    assert "error" in l1.do("request", peer=h1.peer_id, protocol=MANIFEST_PROTOCOL)
    assert "error" in l1.do("request", peer=h1.peer_id, protocol=PEERS_PROTOCOL)


def test_a_killed_libp2p_node_comes_back_with_its_identity_and_is_heard(start: Start, tmp_path: Path) -> None:
    h1 = start("hivemind", "h1", manifest="founder")
    path = tmp_path / "run.manifest"
    h1.do("save_manifest", path=str(path))
    l1 = start("libp2p", "l1", (h1,), manifest=str(path))
    l2 = start("libp2p", "l2", (h1, l1), manifest=str(path))
    meet(h1, l1, l2)
    for sequence in range(30):
        l1.do("share", sequence=sequence, size=1_000)
    for node in (h1, l2):
        until(lambda node=node: len(node.arrived()) == 30, "groups arrive before")
    l1.kill()
    for node in (h1, l2):
        until(lambda node=node: l1.peer_id not in node.connected(), "the loss is seen")
    again = start("libp2p", "l1", (h1,), listen=l1.multiaddrs[0].split("/p2p/")[0], manifest=str(path))
    assert again.peer_id == l1.peer_id and again.multiaddrs == l1.multiaddrs
    meet(h1, again, l2)
    # Message numbers that started anew would be taken for those seen before.
    for sequence in range(30, 60):
        again.do("share", sequence=sequence, size=1_000)
    for node in (h1, l2):
        until(lambda node=node: len(node.arrived()) == 60, "every group arrives after")
    h1.do("share", sequence=0, size=1_000)
    until(lambda: (h1.peer_id, 0) in again.arrived(), "and it hears the others")
