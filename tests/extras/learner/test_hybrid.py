"""A peer that follows a learner keeps its own policy unless the learner's answers more questions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nodes.boot.directory import IDENTITY_FILE
from nodes.boot.manifest import found_run
from nodes.roles.peer import PeerNode
from nodes.roles.runtime import NodeParts
from swarm.config import load_config
from swarm.environments.verification.inline import InlineVerifier
from swarm.errors import Interrupted
from swarm.extras.learner.packing import whole_weights
from swarm.extras.learner.roles import adoption
from swarm.files import RandomAccessFile
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE
from tests.extras.learner.snapshot_files import held, packed

pytestmark = pytest.mark.slow


class FakeFeed:
    def __init__(self, *snapshots: tuple[int, RandomAccessFile]) -> None:
        self.snapshots = list(snapshots)

    def newest(self) -> tuple[int, RandomAccessFile] | None:
        return self.snapshots.pop(0) if self.snapshots else None

    def complaints(self) -> list[tuple[str, str]]:
        return []

    def counters(self) -> dict[str, int]:
        return {"chunks_received": 1}


def _node(out: Path) -> PeerNode:
    values = {
        "out": str(out),
        "follow": {"learner": "somebody", "adopt_questions": 64},
        "evaluation": {"num_questions": 0},
        "generation": {"questions_per_round": 4, "group_size": 2},
    }
    config = load_config(None, values).config
    identity = Identity.load_or_create(out / IDENTITY_FILE)
    transport = MemoryTransport(MemoryHub(), identity.peer_id, found_run(config, identity))
    transport.start()
    return PeerNode(NodeParts(config, identity, transport, InlineVerifier(config.tasks)))


def test_ctrl_c_during_a_comparison_leaves_the_nodes_own_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = _node(tmp_path)
    before = packed(whole_weights(node._ranks.policy))
    other = {name: weights * 0.5 for name, weights in whole_weights(node._ranks.policy).items()}
    compared: list[int] = []

    def interrupted(version: int) -> int:
        compared.append(version)
        if len(compared) == 2:
            raise Interrupted("stopped")
        return 10

    monkeypatch.setattr(node._adoption, "_num_correct", interrupted)
    with pytest.raises(Interrupted):
        node._adoption._compare(3, held(packed(other)))
    assert packed(whole_weights(node._ranks.policy)) == before
    node.close()


def test_better_snapshots_are_adopted_and_worse_ones_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = _node(tmp_path)
    good = packed(whole_weights(node._ranks.policy))
    with torch.no_grad():
        for parameter in node._ranks.policy.model.parameters():
            parameter.mul_(0.0)
    silent = packed(whole_weights(node._ranks.policy))
    feed = FakeFeed((3, held(good)), (4, held(silent)), (5, held(b"garbage")))

    @contextlib.contextmanager
    def open_subscriber(transport: object, learner: str, config: object, *, max_bytes: float) -> Iterator[FakeFeed]:
        assert learner == "somebody" and len(good) <= max_bytes
        yield feed

    monkeypatch.setattr(adoption, "open_subscriber", open_subscriber)
    node.begin()
    for _ in range(3):
        node.step()
    assert packed(whole_weights(node._ranks.policy)) != silent
    node.end("interrupted")
    notes = [moment.text for moment in PeerHistory.read(tmp_path / METRICS_FILE).moments]
    assert any(text.startswith("adopted version 3") for text in notes), notes
    assert any(text.startswith("left version 4") for text in notes), notes
    assert any("version 5 of the learner cannot be used" in text for text in notes), notes
