"""Nodes for the network's tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from swarm.extras.libp2p.transport import Libp2pTransport
from swarm.net.hivemind.transport import HivemindTransport
from swarm.net.membership.member import Profile
from swarm.net.membership.transport import MemberTransport
from tests.nodes.processes import command_of, is_daemon

from .records import LOOPBACK, fast_settings, make_identity, sealed_manifest


def daemons(pid: int | None = None) -> list[psutil.Process]:
    """The network daemons of a process, this one by default."""
    return [child for child in psutil.Process(pid).children() if is_daemon(child)]


def directories() -> list[psutil.Process]:
    """The processes that keep this one's directories of peers."""
    return [
        child for child in psutil.Process().children() if "swarm.net.hivemind.directory_process" in command_of(child)
    ]


@pytest.fixture
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., MemberTransport]]:
    """Starts nodes by name; the one named `founder` brings the run. Closes them, and checks that nothing is left.

    Nodes of tests marked `libp2p` are on that network, others on hivemind's. `before` sees a node before it starts;
    further arguments are settings.
    """
    network = Libp2pTransport if request.node.get_closest_marker("libp2p") else HivemindTransport
    nodes: list[MemberTransport] = []

    def start_one(
        name: str,
        bootstrap: tuple[str, ...] = (),
        *,
        before: Callable[[MemberTransport], None] = lambda node: None,
        **changes: object,
    ) -> MemberTransport:
        identity = make_identity(tmp_path, name)
        manifest = sealed_manifest(identity) if name == "founder" else None
        settings = fast_settings(bootstrap).model_copy(update={"listen": LOOPBACK, **changes})
        node = network(settings, identity, manifest, Profile(model=name))
        nodes.append(node)
        before(node)
        node.start()
        return node

    yield start_one
    for node in nodes:
        node.close()
    assert daemons() == [] and directories() == []
    assert [thread.name for thread in threading.enumerate() if thread.name == "swarm-network"] == []
