"""What nodes sent and received, from the counts in their rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

from msgspec import Struct

from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import RoundEvent
from swarm.telemetry.sections.html import table

SENT, RECEIVED = "network/published_bytes", "network/received_bytes"
TELLING_S = 3_600.0
"""Seconds of a run from which on it says something about a day."""
DAY_S = 86_400


class Traffic(Struct, frozen=True):
    """Bytes of a node's own records that it sent, and of others' that it received, each once."""

    sent: int
    received: int
    wall_s: float
    """Seconds of training in which they were."""

    def a_day(self, num_bytes: int) -> float | None:
        """Bytes a day at this rate; None for a run that is too short to tell."""
        return num_bytes / self.wall_s * DAY_S if self.wall_s >= TELLING_S else None


def traffic_table(histories: Sequence[PeerHistory]) -> str:
    """Bytes of records that each peer sent and received."""
    rows = [
        (
            escape(history.name),
            _megabytes(found.sent),
            _megabytes(found.a_day(found.sent)),
            _megabytes(found.received),
            _megabytes(found.a_day(found.received)),
        )
        for history in histories
        if (found := traffic(history)) is not None
    ]
    if not rows:
        return ""
    note = (
        "In MB. Records only, each counted once: feeds also hand on others' records, and in a large swarm sends and "
        "receives about eight times what is received here (benchmarks/results/scale.md). Snapshots of a learner are "
        "not included. What it comes to in a day is said of runs of an hour or more."
    )
    head = ("peer", "own sent", "a day", "others' received", "a day")
    return table(head, rows, text_columns=1) + f'<p class="note">{note}</p>'


def traffic(history: PeerHistory) -> Traffic | None:
    """All of a node's; None when it was not counted, as by earlier versions and in one process."""
    steps = list(_steps(history))
    if not steps:
        return None
    return Traffic(sum(sent for _, sent, _, _ in steps), sum(got for _, _, got, _ in steps), history.wall_s)


def rates(history: PeerHistory) -> Iterator[tuple[int, float, float]]:
    """(round, bytes per second sent, and received) of each round whose seconds are known."""
    for number, sent, received, seconds in _steps(history):
        if seconds > 0:
            yield number, sent / seconds, received / seconds


def _steps(history: PeerHistory) -> Iterator[tuple[int, int, int, float]]:
    """(round, bytes sent, bytes received, seconds) of each round; counts and clock of a new process begin at 0."""
    counted = [event for event in history.series() if SENT in event.counters or RECEIVED in event.counters]
    if counted:
        yield _step(counted[0], None)
    for before, now in pairwise(counted):
        yield _step(now, before if now.wall_s >= before.wall_s else None)


def _step(now: RoundEvent, before: RoundEvent | None) -> tuple[int, int, int, float]:
    if before is None:
        return now.round, now.counters.get(SENT, 0), now.counters.get(RECEIVED, 0), now.wall_s
    sent = now.counters.get(SENT, 0) - before.counters.get(SENT, 0)
    received = now.counters.get(RECEIVED, 0) - before.counters.get(RECEIVED, 0)
    return now.round, max(0, sent), max(0, received), now.wall_s - before.wall_s


def _megabytes(num_bytes: float | None) -> str:
    if num_bytes is None:
        return "–"
    return f"{num_bytes / 1e6:,.2f}"
