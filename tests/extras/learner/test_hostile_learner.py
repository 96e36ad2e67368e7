"""A learner is a stranger too: what it signs as snapshots, and live followers of it, which go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from nodes.boot.manifest import found_run
from swarm.config import load_config
from swarm.extras.learner.heartbeats import serve_heartbeats
from swarm.extras.learner.packing import whole_weights
from swarm.net.config import NetworkSettings, SnapshotSettings
from swarm.net.hivemind.transport import HivemindTransport
from swarm.net.records.identity import Identity
from swarm.policy.loading import load_policy
from swarm.types import Orders
from tests.attacks.conftest import memory_bytes
from tests.extras.learner.hostile_snapshots import HOSTILE
from tests.extras.learner.snapshot_files import BytesPublisher, packed
from tests.nodes.processes import Swarm, until

pytestmark = [pytest.mark.slow, pytest.mark.network]

MORE_BYTES = 300 * 2**20


class HostileLearner:
    """Founds a run with the node's own parts, wants rollouts without end, and publishes what a test gives it."""

    def __init__(self, folder: Path) -> None:
        identity = Identity.load_or_create(folder / "identity.key")
        config = load_config(None, {"out": str(folder)}).config
        network = NetworkSettings(
            listen=("/ip4/127.0.0.1/tcp/0",), nat_port_map=False, snapshots=SnapshotSettings(poll_s=0.5)
        )
        self.peer_id = identity.peer_id
        self.transport = HivemindTransport(network, identity, found_run(config, identity))
        self.transport.start()
        self.version = 0
        serve_heartbeats(self.transport, lambda peer_id, beat: Orders(self.version, 8, True))
        self._publisher = BytesPublisher(self.transport, identity, folder / "snapshots", network)
        self._publisher.start()

    def publish(self, snapshot: bytes) -> int:
        self.version += 1
        self._publisher.publish(self.version, snapshot)
        return self.version

    def close(self) -> None:
        self._publisher.close()
        self.transport.close()


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileLearner]:
    founded = HostileLearner(tmp_path_factory.mktemp("learner"))
    yield founded
    founded.close()


@pytest.fixture(scope="module")
def attacks() -> dict[str, bytes]:
    """Snapshots that every follower must refuse."""
    own = whole_weights(load_policy(load_config(None, {}).config.policy))
    name = next(name for name, value in own.items() if value.ndim == 2)
    infinite = {each: value.clone() for each, value in own.items()}
    infinite[name][0, 0] = float("inf")
    return {
        **{what: HOSTILE[what] for what in ("a scale of another shape", "an outer product")},
        "a nested header": HOSTILE["a nested header"],
        "one more tensor": packed({**own, "more": torch.zeros(3)}),
        "infinity": packed(infinite),
        "numbers that overflow": packed({each: value * 1e15 for each, value in own.items()}),
    }


@pytest.fixture(scope="module")
def good() -> bytes:
    return packed(whole_weights(load_policy(load_config(None, {}).config.policy)))


def _texts(node: Swarm) -> list[str]:
    return [moment.text for moment in node.history().moments]


def _says(node: Swarm, *words: str) -> Callable[[], bool]:
    return lambda: any(all(word in text for word in words) for text in _texts(node))


def test_no_snapshot_ends_a_worker_and_the_next_good_one_is_installed(
    tmp_path: Path,
    learner: HostileLearner,
    attacks: dict[str, bytes],
    good: bytes,
    victims: Callable[..., Swarm],
) -> None:
    """171 bytes ended one, and 150 KB took it to 4 GB."""
    worker = victims(tmp_path / "worker", "work", learner.transport.multiaddrs()[0], "--follow.questions=8")
    until(_says(worker, "fetching the learner's newest snapshot"), worker, "a worker")
    before = memory_bytes(worker)
    for what, snapshot in attacks.items():
        version = learner.publish(snapshot)
        until(_says(worker, f"version {version} cannot be installed"), worker, f"a refusal of {what}")
    assert memory_bytes(worker) < before + MORE_BYTES
    learner.publish(good)
    until(lambda: worker.round() >= 2, worker, "batches")
    assert "Traceback" not in worker.text()


def test_no_snapshot_ends_a_peer_that_follows(
    tmp_path: Path,
    learner: HostileLearner,
    attacks: dict[str, bytes],
    victims: Callable[..., Swarm],
) -> None:
    follow = (f"--follow.learner={learner.peer_id}", "--follow.adopt_questions=8", "--evaluation.num_questions=0")
    peer = victims(tmp_path / "peer", "join", learner.transport.multiaddrs()[0], *follow)
    until(lambda: peer.round() >= 1, peer, "a round")
    before = memory_bytes(peer)
    for what, snapshot in attacks.items():
        version = learner.publish(snapshot)
        until(_says(peer, f"version {version} of the learner cannot be used"), peer, f"a refusal of {what}")
    assert memory_bytes(peer) < before + MORE_BYTES
    done = peer.round()
    until(lambda: peer.round() > done, peer, "further rounds")
    assert "Traceback" not in peer.text()
