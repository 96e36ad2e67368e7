"""Suites of a node that trains: when they are asked, by which weights, and what happens when one takes too long."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from nodes.boot.directory import IDENTITY_FILE
from nodes.boot.manifest import found_run
from nodes.roles import suites
from nodes.roles.peer import PeerNode
from nodes.roles.runtime import NodeParts
from nodes.roles.suites import NodeSuites
from swarm.config import NodeConfig, load_config
from swarm.environments.config import TaskConfig
from swarm.environments.verification.inline import InlineVerifier
from swarm.errors import ConfigError, EngineError
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.policy.loading import Policy
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE, Event, NoteEvent, SuiteEvent
from swarm.telemetry.samples import read
from tests.suites.doubles import Numbering, Rows

SUITE = {"tasks": ["rows"], "questions": 4, "k": 2, "every_rounds": 2}
ROWS = {"kind": "dataset", "name": "rows", "path": "rows.jsonl"}


def _config(values: dict[str, object], **evaluation: object) -> NodeConfig:
    return load_config(None, {**values, "evaluation": {"num_questions": 0, **evaluation}}).config


class Suites:
    """A node's suites with doubles for everything slow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **evaluation: object) -> None:
        self.events: list[Event] = []
        self.engine = Numbering()
        self.verifiers: list[Rows] = []
        self.between = 0
        monkeypatch.setattr(suites, "open_verifier", self._open_verifier)
        policy = SimpleNamespace(ranks=SimpleNamespace(size=1), max_positions=1024, name="tiny")
        config = _config({"tasks": [ROWS]}, suites={"rows": SUITE}, **evaluation)
        self.node = NodeSuites(config, policy, self.events.append, lambda: False, self._between)  # type: ignore[arg-type]

    def _open_verifier(self, tasks: Sequence[TaskConfig], settings: object) -> Rows:
        assert [task.name for task in tasks] == ["rows"]
        self.verifiers.append(Rows(rows=4))
        return self.verifiers[-1]

    def _between(self) -> None:
        self.between += 1

    @property
    def results(self) -> list[tuple[int, str]]:
        return [(event.round, event.suite) for event in self.events if isinstance(event, SuiteEvent)]

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, NoteEvent) and event.level == "warning"]


def test_a_suite_is_asked_before_after_and_every_so_many_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Suites(monkeypatch)
    run.node.before_the_first_round(run.engine)
    for number in range(1, 7):
        run.node.after_round(run.engine, number, last=number == 6)
    run.node.after_the_last(run.engine, 6)
    assert run.results == [(0, "rows"), (2, "rows"), (4, "rows"), (6, "rows")]
    assert run.between == 3, "others' groups are received after every slice, while there are more rounds"
    assert all(verifier.closed for verifier in run.verifiers)
    asking, first, *_ = run.events
    assert isinstance(asking, NoteEvent) and asking.text == "asking suite rows: 4 questions, 2 completions each"
    assert isinstance(first, SuiteEvent) and first.k == 2
    assert (first.scores.num_questions, first.scores.num_ungraded) == (2, 1), "rows 0 and 2; row 3 is not graded"
    assert first.scores.figures["avg@2"].value == first.tasks["rows"].figures["avg@2"].value == 0.5


class Held(Numbering):
    """An engine that answers when it is let, and can be closed."""

    def __init__(self, *arguments: object) -> None:
        super().__init__()
        self.free = threading.Event()
        self.closed = False

    def generate(self, *arguments: object) -> list:
        assert self.free.wait(60)
        if self.closed:
            raise EngineError("the generating process exited with -9")
        return super().generate(*arguments)  # type: ignore[arg-type]

    def close(self) -> None:
        self.closed = True
        self.free.set()


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> list[Held]:
    """The engines that evaluations beside training have opened."""
    opened: list[Held] = []

    def open_engine(*arguments: object) -> Held:
        opened.append(Held())
        return opened[-1]

    monkeypatch.setattr("swarm.engines.process.engine.ProcessEngine", open_engine)
    return opened


def test_beside_training_nothing_waits_and_what_is_due_too_soon_is_left_out(
    monkeypatch: pytest.MonkeyPatch, beside: list[Held]
) -> None:
    run = Suites(monkeypatch, beside=True)
    run.node.before_the_first_round(run.engine)
    run.node.after_round(run.engine, 1, last=False)
    run.node.after_round(run.engine, 2, last=False)
    assert run.results == [] and not run.engine.calls
    assert run.notes == ["not evaluated after round 2: rows; the evaluation of round 0 is not finished"]
    beside[0].free.set()
    run.node.after_the_last(run.engine, 3)
    assert run.results == [(0, "rows"), (3, "rows")] and len(beside) == 1
    assert beside[0].calls[0][0] == run.engine.calls[0][0], "the same questions, by another engine"
    assert beside[0].closed, "its process holds memory"
    assert run.between == 0, "only while training waits"
    run.node.close()


def test_a_failure_beside_training_is_raised_where_the_node_trains(
    monkeypatch: pytest.MonkeyPatch, beside: list[Held]
) -> None:
    run = Suites(monkeypatch, beside=True)
    run.node.before_the_first_round(run.engine)
    beside[0].close()
    with pytest.raises(EngineError, match="exited with -9"):
        run.node.after_the_last(run.engine, 2)
    run.node.close()


def test_a_node_that_stops_ends_the_evaluation_beside_it(monkeypatch: pytest.MonkeyPatch, beside: list[Held]) -> None:
    run = Suites(monkeypatch, beside=True)
    run.node.before_the_first_round(run.engine)
    run.node.close()
    assert beside[0].closed and run.results == []


def test_what_cannot_work_is_refused_before_anything_starts(policy: Policy) -> None:
    long = _config({"tasks": [ROWS]}, suites={"rows": {"sampling": {"max_new_tokens": policy.max_positions}}})
    shared = SimpleNamespace(ranks=SimpleNamespace(size=2), max_positions=1024, name="tiny")
    for config, model, message in [
        (long, policy, "max_new_tokens must be less than"),
        (_config({}, beside=True), shared, "beside must be false with 2 processes"),
    ]:
        with pytest.raises(ConfigError, match=message):
            NodeSuites(config, model, lambda event: None, lambda: False, lambda: None)  # type: ignore[arg-type]


GCD = {"tasks": ["gcd"], "questions": 24, "k": 2}


def _peer(out: Path, **evaluation: object) -> PeerNode:
    values = {
        "out": str(out),
        "rounds": 2,
        "seed": 1,
        "generation": {"questions_per_round": 4, "group_size": 4},
        "policy": {"threads": 1},
    }
    config = _config(values, suites={"small": GCD}, **evaluation)
    out.mkdir()
    identity = Identity.load_or_create(out / IDENTITY_FILE)
    transport = MemoryTransport(MemoryHub(), identity.peer_id, found_run(config, identity))
    transport.start()
    return PeerNode(NodeParts(config, identity, transport, InlineVerifier(config.tasks)))


def _train(node: PeerNode) -> None:
    node.begin()
    while not node.done:
        node.step()
    node.end("done")


@pytest.mark.slow
def test_a_peer_evaluates_beside_training_the_policy_that_it_would_have_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suites, "open_verifier", lambda tasks, settings: InlineVerifier(tasks))
    _train(_peer(tmp_path / "waits"))
    _train(_peer(tmp_path / "beside", beside=True))
    waited, beside = (PeerHistory.read(tmp_path / name / METRICS_FILE) for name in ("waits", "beside"))
    assert set(waited.suites["small"]) == set(beside.suites["small"]) == {0, 2}
    for number, event in waited.suites["small"].items():
        assert beside.suites["small"][number].scores == event.scores
    assert [event.reward for event in waited.series()] == [event.reward for event in beside.series()]
    summary = waited.peer_summary()
    assert set(summary["suites"]["small"]) == {"avg@2", "pass@1", "pass@2"}
    kept = read(tmp_path / "waits")
    assert {record.round for record in kept} == {1, 2} and all(record.own for record in kept)
    counts = waited.groups
    assert sum(record.outcome == "used_local" for record in kept) == counts["used_local"]
