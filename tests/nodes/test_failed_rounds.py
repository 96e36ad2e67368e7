"""How a node ends whose rounds fail: with a note, its checkpoint, and the end event."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nodes import exits
from nodes.roles.launch import _rounds
from swarm.errors import (
    EngineError,
    NonFiniteUpdates,
    OutOfMemory,
    SnapshotError,
    SwarmError,
    TaskError,
    TransportError,
)


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
    assert _rounds(running, lambda: False, None, None) == code  # type: ignore[arg-type]
    assert node.ended == ["error"]
    assert [level for text, level in node.notes if "the reason" in text] == ["error"]
