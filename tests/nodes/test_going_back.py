"""A node that others have made worse goes back to a good checkpoint, and says so."""

from __future__ import annotations

from pathlib import Path

import torch

from nodes.boot.directory import IDENTITY_FILE
from nodes.boot.manifest import found_run
from nodes.roles.peer import PeerNode
from nodes.roles.runtime import NodeParts
from swarm.config import load_config
from swarm.environments.verification.inline import InlineVerifier
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.policy.loading import load_policy
from swarm.sapo.watch import Alarm
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE

ALARM = Alarm(0.5, 0.1, ("12D3poisoner",), 100)


def _node(out: Path) -> PeerNode:
    values = {
        "evaluation": {"num_questions": 0},
        "generation": {"questions_per_round": 4, "group_size": 4},
        "checkpoint": {"every_rounds": 1, "keep": 1},
        "watch": {"window_rounds": 2},
        "mix": {"local": 4},
    }
    config = load_config(None, values).config.model_copy(update={"out": out, "seed": 1})
    out.mkdir(exist_ok=True)
    identity = Identity.load_or_create(out / IDENTITY_FILE)
    transport = MemoryTransport(MemoryHub(), identity.peer_id, found_run(config, identity))
    transport.start()
    return PeerNode(NodeParts(config, identity, transport, InlineVerifier(config.tasks)))


def test_weights_go_back_to_the_last_good_checkpoint_and_people_are_told(tmp_path: Path) -> None:
    node = _node(tmp_path / "peer")
    node.begin()
    rounds = 0
    while node._checkpoints._store.good is None and rounds < 60:
        node.step()
        rounds += 1
    good = node._checkpoints._store.good
    assert good is not None
    policy, version = node._ranks.policy, node._ranks.version
    with torch.no_grad():
        for parameter in policy.weights.values():
            parameter.mul_(0.5)
    node._go_back(ALARM)
    settings = node._config.policy
    for name, weights in load_policy(settings, good / "model").weights.items():
        torch.testing.assert_close(policy.weights[name], weights, atol=0, rtol=0)
    assert node._ranks.version == version + 1, "versions only rise"
    newest = node._checkpoints._store.newest()
    assert newest is not None and newest.name == f"round-{node.round:08d}", "a kill now would not bring it back"
    for name, weights in load_policy(settings, newest / "model").weights.items():
        torch.testing.assert_close(policy.weights[name], weights, atol=0, rtol=0)
    node.step()
    node.end("interrupted")
    history = PeerHistory.read(tmp_path / "peer" / METRICS_FILE)
    (told,) = [moment for moment in history.moments if moment.level == "warning"]
    assert "0.500" in told.text and good.name in told.text and "12D3poisoner" in told.text
    node._identity.close()
    again = _node(tmp_path / "peer")
    assert again._node.external.watch.dump() == node._node.external.watch.dump(), "a restart ends no rest"
    assert again._checkpoints._store.good == node._checkpoints._store.good is not None
    again.close()


def test_without_a_good_checkpoint_the_policy_stays_as_it_is(tmp_path: Path) -> None:
    node = _node(tmp_path / "peer")
    node.begin()
    before = {name: weights.clone() for name, weights in node._ranks.policy.weights.items()}
    node._go_back(ALARM)
    assert all(torch.equal(before[name], weights) for name, weights in node._ranks.policy.weights.items())
    node.end("interrupted")
    history = PeerHistory.read(tmp_path / "peer" / METRICS_FILE)
    assert any("no good checkpoint" in moment.text for moment in history.moments)
