"""What the network's state becomes for people."""

from __future__ import annotations

from nodes.boot.assemble import NetworkWatch
from swarm.types import NetworkStatus, RunManifest


class Notes:
    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def note(self, text: str, level: str = "info") -> None:
        self.said.append((text, level))


def test_that_most_speak_another_version_is_said_once_even_in_company() -> None:
    notes = Notes()
    watch = NetworkWatch(notes, "training alone", None, 4)  # type: ignore[arg-type]
    for split in ("", "2 of 3 peers: update swarm here", "3 of 4 peers: update swarm here", "", "1 of 1 peers: update"):
        watch.look(NetworkStatus("run", ("peer",), None, "connected", split), None)
    assert notes.said == [("2 of 3 peers: update swarm here", "warning"), ("1 of 1 peers: update", "warning")]


def test_a_node_that_learns_of_the_run_late_is_told_that_its_groups_are_too_large() -> None:
    manifest = RunManifest("run", "founder", 1.0, (), 4, 1, 1, 1_000_000, 1_000)
    for group_size, levels in ((4, ["info"]), (8, ["info", "warning"])):
        notes = Notes()
        watch = NetworkWatch(notes, "training alone", None, group_size)  # type: ignore[arg-type]
        for _ in range(2):
            watch.look(NetworkStatus("run", ("peer",), None, "connected", ""), manifest)
        assert [level for _, level in notes.said] == levels
