"""One node as its directory shows it, in bounded memory."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from msgspec import Struct

from swarm.errors import ConfigError
from swarm.foreign import clean
from swarm.net.roster import ROSTER_FILE, Progress, Roster, read_progress, read_roster
from swarm.telemetry.alerts.checks import Alert, alerts, free_bytes
from swarm.telemetry.alerts.curves import Curve
from swarm.telemetry.history import KEPT_ROUNDS, PeerHistory
from swarm.telemetry.records import (
    METRICS_FILE,
    Event,
    MixDecision,
    RoundEvent,
    StartEvent,
)

MAX_NAME_CHARS = 40
MAX_TASKS = 64
MAX_DECISIONS = 8


class Decision(Struct, frozen=True):
    """A decision of the mixing policy, from its first round on."""

    round: int
    mix: MixDecision


class NodeReader:
    """What a node's directory says, up to the last `read`."""

    def __init__(self, folder: Path, name: str | None = None, control: bool = False) -> None:
        """`control`: the node learns alone for others to be compared with."""
        self.folder = folder
        self.control = control
        self.history = PeerHistory(folder / METRICS_FILE, name, KEPT_ROUNDS)
        self.roster: Roster | None = None
        self.free_bytes: int | None = None
        """On the disk of the directory."""
        self.snapshot: Progress | None = None
        """How far its newest snapshot is, if it gives or takes any."""
        self._roster_at: float | None = None
        self._forget()

    @property
    def name(self) -> str:
        """For people; what a user calls a node may be anything."""
        return clean(self.history.name, MAX_NAME_CHARS)

    @property
    def curves(self) -> dict[str, Curve]:
        """Its figures by round, by name."""
        return self.history.figures.curves

    def alerts(self, now: float) -> list[Alert]:
        """All that is wrong with it, errors first; `now` in Unix seconds."""
        return alerts(self.history, now, self.control, self.free_bytes)

    @property
    def demo(self) -> Path:
        """The directory that it shares with its control and the other nodes of its demo."""
        return self.folder.parent

    @property
    def peer_id(self) -> str | None:
        """None before the start event."""
        return self.history.start.peer_id if self.history.start else None

    @property
    def model(self) -> str:
        """`policy.model`; empty before the start event."""
        policy = self.history.start.config.get("policy") if self.history.start else None
        return clean(str(policy.get("model", "")), MAX_NAME_CHARS) if isinstance(policy, dict) else ""

    def read(self) -> bool:
        """Read what is new; whether there was any."""
        changed = False
        for event in self.history.news():
            changed = True
            self._take(event)
        changed |= self._read_roster()
        before, self.snapshot = self.snapshot, read_progress(self.folder)
        changed |= self.snapshot != before
        self.free_bytes = free_bytes(self.folder)
        return changed

    def _forget(self) -> None:
        self.tasks: dict[str, Curve] = {}
        """Mean reward by task."""
        self.decisions: deque[Decision] = deque(maxlen=MAX_DECISIONS)
        """Each differs from the one before."""

    def _take(self, event: Event) -> None:
        match event:
            case StartEvent(resumed_from=None):
                self._forget()
            case StartEvent():
                for curve in self.tasks.values():
                    curve.cut(event.resumed_from or 0)
            case RoundEvent():
                self._add_round(event)

    def _add_round(self, event: RoundEvent) -> None:
        for task, (rewards, count) in event.tasks.items():
            if count and (task in self.tasks or len(self.tasks) < MAX_TASKS):
                self.tasks.setdefault(task, Curve()).add(event.round, rewards / count)
        if event.mix is not None and not (self.decisions and _same(self.decisions[-1].mix, event.mix)):
            self.decisions.append(Decision(event.round, event.mix))

    def _read_roster(self) -> bool:
        try:
            changed_at = (self.folder / ROSTER_FILE).stat().st_mtime
        except OSError:
            return False  # a node that has none, or is about to write its first
        if changed_at == self._roster_at:
            return False
        # One that cannot be read is not read again before it changes: it may be large.
        self._roster_at = changed_at
        try:
            self.roster = read_roster(self.folder)
        except ConfigError:
            return False
        return True


def _same(one: MixDecision, other: MixDecision) -> bool:
    return (one.policy, one.local, one.external) == (other.policy, other.local, other.external)
