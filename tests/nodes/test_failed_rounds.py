"""How a node ends whose rounds fail: with a note, its checkpoint, and the end event."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from nodes import exits
from nodes.boot.loop import run_steps
from swarm.errors import (
    EngineError,
    NonFiniteUpdates,
    OutOfMemory,
    SnapshotError,
    SwarmError,
    TaskError,
    TransportError,
)
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import Event, RoundEvent
from tests.telemetry import synthetic


class Failing:
    done = False

    def __init__(self, error: SwarmError) -> None:
        self.error = error
        self.notes: list[tuple[str, str]] = []
        self.ended: list[str] = []

    def begin(self) -> None:
        raise self.error

    def note(self, text: str, level: str = "info") -> None:
        self.notes.append((text, level))

    def end(self, reason: str) -> None:
        self.ended.append(reason)


@pytest.mark.parametrize(
    ("error", "code"),
    [(TransportError, exits.NETWORK)]
    + [(error, exits.FAILED) for error in (EngineError, NonFiniteUpdates, OutOfMemory, SnapshotError, TaskError)],
)
def test_an_error_that_stays_is_said_and_ends_the_node_in_order(error: type[SwarmError], code: int) -> None:
    node = Failing(error("the reason"))
    running = SimpleNamespace(node=node)
    assert run_steps(running, lambda: False, None, None) == code  # type: ignore[arg-type]
    assert node.ended == ["error"]
    assert [level for text, level in node.notes if "the reason" in text] == ["error"]


class Finished:
    """A node that has made its rounds."""

    done = True

    def begin(self) -> None:
        """It does no more."""

    def end(self, reason: str) -> None:
        assert reason == "done"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, exits.DONE),
        ({"reward": None, "problem": "prompt_too_long: 6,013 tokens"}, exits.FAILED),
        ({"reward": 0.0, "counters": {"verifier/scorer_failures": 1}}, exits.DONE),
    ],
)
def test_a_run_that_did_nothing_at_all_is_no_success(fields: dict[str, object], code: int, tmp_path: Path) -> None:
    events: list[Event] = [
        replace(event, **fields) if isinstance(event, RoundEvent) else event
        for event in synthetic.peer_events(num_rounds=4)
    ]
    history = PeerHistory.read(synthetic.write(tmp_path, events))
    running = SimpleNamespace(node=Finished())
    assert run_steps(running, lambda: False, None, history) == code  # type: ignore[arg-type]


def test_a_reward_function_that_always_fails_is_no_success(tmp_path: Path) -> None:
    events: list[Event] = [
        replace(event, reward=0.0, counters={"verifier/scorer_failures": event.round})
        if isinstance(event, RoundEvent)
        else event
        for event in synthetic.peer_events(num_rounds=4)
    ]
    history = PeerHistory.read(synthetic.write(tmp_path, events))
    running = SimpleNamespace(node=Finished())
    assert run_steps(running, lambda: False, None, history) == exits.FAILED  # type: ignore[arg-type]
