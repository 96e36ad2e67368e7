"""Evaluations on held-out questions: none that is due is lost to an interruption."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodes.boot.manifest import found_run
from nodes.roles import runtime
from nodes.roles.peer import PeerNode
from nodes.roles.runtime import NodeParts
from swarm.config import load_config
from swarm.environments.verification.inline import InlineVerifier
from swarm.errors import Interrupted
from swarm.evaluation import Evaluation
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.telemetry.records import METRICS_FILE, EvaluationEvent, decode


def _node(out: Path, identity: Identity) -> PeerNode:
    values = {
        "rounds": 4,
        "evaluation": {"num_questions": 4, "every_rounds": 2},
        "generation": {"questions_per_round": 2, "group_size": 4},
        "mix": {"local": 2},
    }
    config = load_config(None, values).config.model_copy(update={"out": out, "seed": 1})
    transport = MemoryTransport(MemoryHub(), identity.peer_id, found_run(config, identity))
    transport.start()
    return PeerNode(NodeParts(config, identity, transport, InlineVerifier(config.tasks)))


def _evaluated(out: Path) -> list[int]:
    events = map(decode, (out / METRICS_FILE).read_bytes().splitlines())
    return [event.round for event in events if isinstance(event, EvaluationEvent)]


def _interrupt(*arguments: object) -> Evaluation:
    raise Interrupted("Ctrl-C")


def test_an_interrupted_evaluation_is_made_up_after_a_restart_and_a_finished_one_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = Identity.generate()
    first = _node(tmp_path, identity)
    first.begin()
    first.step()
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(runtime, "evaluate", _interrupt)
        first.step()
    first.end("interrupted")
    assert _evaluated(tmp_path) == [0]

    second = _node(tmp_path, identity)
    second.begin()
    assert _evaluated(tmp_path) == [0, 2]
    second.end("interrupted")

    third = _node(tmp_path, identity)
    third.begin()
    while not third.done:
        third.step()
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "evaluate", _interrupt)
        third.end("done")
    assert _evaluated(tmp_path) == [0, 2]

    fourth = _node(tmp_path, identity)
    fourth.begin()
    fourth.end("done")
    assert _evaluated(tmp_path) == [0, 2, 4]
