"""A peer whose completions come from vLLM, to the end of its run; with the stand-in for vLLM."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from nodes.boot.directory import CHECKPOINTS, IDENTITY_FILE
from nodes.boot.manifest import found_run
from nodes.roles.peer import PeerNode
from nodes.roles.runtime import NodeParts
from swarm.config import load_config
from swarm.errors import EngineError
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.telemetry.records import METRICS_FILE
from swarm.training.checkpoint import CheckpointStore
from swarm.types import Grade, Rejection, TaskRef
from tests.extras.vllm.stand_in import python_with_vllm, script_for_vllm
from tests.nodes.processes import command_of
from tests.sapo.test_round import FakeVerifier

NUM_QUESTIONS = 8


class Parity(FakeVerifier):
    """Rewards every second last character: there is something to learn from tokens drawn at random."""

    def grade(self, jobs: Sequence[tuple[TaskRef, Sequence[str]]]) -> list[Grade | Rejection]:
        return [Grade("prompt", tuple(float(ord(text[-1]) % 2) for text in texts)) for _, texts in jobs]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return script_for_vllm(tmp_path, monkeypatch)


@pytest.fixture
def node(tmp_path: Path, script: Path) -> Iterator[PeerNode]:
    """After two rounds, which are all it was asked for."""
    values = {
        "out": str(tmp_path),
        "rounds": 2,
        "seed": 1,
        "generation": {
            "engine": "vllm",
            "vllm": {"python": str(python_with_vllm(tmp_path))},
            "questions_per_round": 4,
            "group_size": 4,
        },
        "evaluation": {"num_questions": NUM_QUESTIONS},
    }
    config = load_config(None, values).config
    identity = Identity.load_or_create(tmp_path / IDENTITY_FILE)
    transport = MemoryTransport(MemoryHub(), identity.peer_id, found_run(config, identity))
    transport.start()
    node = PeerNode(NodeParts(config, identity, transport, Parity()))
    node.begin()
    while not node.done:
        node.step()
    yield node
    node.close()


def _events(out: Path, kind: str) -> list[dict]:
    events = map(json.loads, (out / METRICS_FILE).read_text().splitlines())
    return [event for event in events if event["event"] == kind]


def _servers() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "swarm.extras.vllm.server" in command_of(child)]


def test_the_last_evaluation_is_of_the_last_weights_and_the_process_is_gone_after_it(
    node: PeerNode, tmp_path: Path, script: Path
) -> None:
    (server,) = _servers()
    node.end("done")
    evaluations = _events(tmp_path, "evaluation")
    asked = [(event["round"], event["num_questions"]) for event in evaluations]
    assert asked == [(0, NUM_QUESTIONS), (2, NUM_QUESTIONS)]
    assert 0 < evaluations[-1]["accuracy"] < 1, "the questions were answered"
    loaded_by = (script / "loads").read_text().split()
    assert loaded_by == [str(server.pid)] * 2, "after each update, before the next completions"
    assert not server.is_running() and not _servers()
    assert _events(tmp_path, "end")[0]["reason"] == "done"


def test_a_last_evaluation_that_fails_costs_nothing_else(node: PeerNode, tmp_path: Path, script: Path) -> None:
    (script / "crash-always").touch()
    with pytest.raises(EngineError, match="vLLM died 3 times in a row"):
        node.end("done")
    newest = CheckpointStore(tmp_path / CHECKPOINTS).newest()
    assert newest is not None and newest.name == "round-00000002"
    assert not _servers()
    assert _events(tmp_path, "end")[0]["reason"] == "error"
    assert "vLLM died 3 times" in _events(tmp_path, "note")[-1]["text"]
