"""A peer's mixing policy: in its checkpoint, and in its metrics."""

from __future__ import annotations

from pathlib import Path

from nodes.boot.manifest import found_run
from nodes.roles.peer import PeerNode
from nodes.roles.runtime import NodeParts
from swarm.config import load_config
from swarm.environments.verification.inline import InlineVerifier
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE


def _node(out: Path, identity: Identity) -> PeerNode:
    values = {
        "evaluation": {"num_questions": 0},
        "generation": {"questions_per_round": 4, "group_size": 4},
        "mix": {"policy": "auto", "settings": {"window_rounds": 2}},
    }
    config = load_config(None, values).config.model_copy(update={"out": out, "seed": 1})
    transport = MemoryTransport(MemoryHub(), identity.peer_id, found_run(config, identity))
    transport.start()
    return PeerNode(NodeParts(config, identity, transport, InlineVerifier(config.tasks)))


def test_a_restarted_peer_knows_what_its_policy_knew(tmp_path: Path) -> None:
    identity = Identity.generate()
    first = _node(tmp_path, identity)
    first.begin()
    for _ in range(3):
        first.step()
    known = first._node.external.mixer.dump()
    first.end("interrupted")
    assert [each.round for each in known.rounds] == [1, 2, 3] and known.state["num_rounds"] == 3
    second = _node(tmp_path, identity)
    assert second._node.external.mixer.dump() == known
    second.begin()
    second.step()
    second.end("interrupted")
    assert second._node.external.mixer.dump().state["num_rounds"] == 4
    event = PeerHistory.read(tmp_path / METRICS_FILE).rounds[4]
    assert event.mix is not None and event.mix.policy == "auto"
    assert (
        (event.figures["mix/local"], event.figures["mix/external"]) == (event.mix.local, event.mix.external) == (8, 0)
    )
    assert event.mix.reason.endswith("0 of 0 others' wanted")
