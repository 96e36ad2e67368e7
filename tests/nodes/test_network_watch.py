"""What the network's state becomes for people."""

from __future__ import annotations

from nodes.roles.launch import _NetworkWatch
from swarm.types import NetworkStatus


class Notes:
    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def note(self, text: str, level: str = "info") -> None:
        self.said.append((text, level))


def test_that_most_speak_another_version_is_said_once_even_in_company() -> None:
    notes = Notes()
    watch = _NetworkWatch(notes, "training alone", None)  # type: ignore[arg-type]
    for split in ("", "2 of 3 peers: update swarm here", "3 of 4 peers: update swarm here", "", "1 of 1 peers: update"):
        watch.look(NetworkStatus("run", ("peer",), None, "connected", split), None)
    assert notes.said == [("2 of 3 peers: update swarm here", "warning"), ("1 of 1 peers: update", "warning")]
