"""One node as its directory shows it, in bounded memory."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from swarm.errors import ConfigError
from swarm.figures import LAG_MAX, LAG_MEAN
from swarm.foreign import clean
from swarm.net.snapshot_progress import Progress, read_progress
from swarm.net.trust.roster import ROSTER_FILE, Roster, read_roster
from swarm.page.curves import Curve
from swarm.telemetry.history import KEPT_ROUNDS, PeerHistory
from swarm.telemetry.records import (
    METRICS_FILE,
    EvaluationEvent,
    Event,
    GroupCounts,
    MixDecision,
    RoundEvent,
    StartEvent,
)

MAX_NAME_CHARS = 40
MAX_TASKS = 64
MAX_DECISIONS = 8
SHARE_OF_OTHERS = "share of others"
"""Others' part of the groups in an update."""
FIGURES = {
    "entropy": "entropy",
    "KL to the reference": "kl",
    "KL to the sampler": "sampling/behaviour_kl",
    "gradient norm": "grad_norm",
    "mean length": "completions/mean_length",
    "cut off": "completions/clipped_ratio",
    "mean lag": LAG_MEAN,
    "largest lag": LAG_MAX,
    "no signal": "frac_reward_zero_std",
    "skipped steps": "train/num_skipped_steps",
}
"""Curves of `RoundEvent.figures`, by the name that the page has for them."""


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
        try:
            self.free_bytes = shutil.disk_usage(self.folder).free
        except OSError:
            self.free_bytes = None
        return changed

    def _forget(self) -> None:
        self.curves: dict[str, Curve] = {}
        """By name: reward, those of `FIGURES`, and what `_add_round` names."""
        self.tasks: dict[str, Curve] = {}
        """Mean reward by task."""
        self.decisions: deque[Decision] = deque(maxlen=MAX_DECISIONS)
        """Each differs from the one before."""
        self.share_at_best: float | None = None
        """Others' part of the updates when the reward was at its best."""
        self._before: RoundEvent | None = None

    def _take(self, event: Event) -> None:
        match event:
            case StartEvent(resumed_from=None):
                self._forget()
            case StartEvent():
                for curve in (*self.curves.values(), *self.tasks.values()):
                    curve.cut(event.resumed_from or 0)
                self._before = None
            case RoundEvent():
                self._add_round(event)
            case EvaluationEvent():
                self._curve("accuracy").add(max(1, event.round), event.accuracy)

    def _add_round(self, event: RoundEvent) -> None:
        values: dict[str, float | None] = {"reward": event.reward, "tokens per second": event.tokens_per_s}
        values |= {name: event.figures.get(key) for name, key in FIGURES.items()}
        before, self._before = self._before, event
        if before is not None and before.round == event.round - 1:
            values |= between(before, event)
        for name, value in values.items():
            if value is not None:
                self._curve(name).add(event.round, value)
        for task, (rewards, count) in event.tasks.items():
            if count and (task in self.tasks or len(self.tasks) < MAX_TASKS):
                self.tasks.setdefault(task, Curve()).add(event.round, rewards / count)
        reward = self.curves.get("reward")
        if reward is not None and reward.recent is not None and reward.recent == reward.best:
            share = self.curves.get(SHARE_OF_OTHERS)
            self.share_at_best = share.recent if share is not None else None
        if event.mix is not None and not (self.decisions and _same(self.decisions[-1].mix, event.mix)):
            self.decisions.append(Decision(event.round, event.mix))

    def _curve(self, name: str) -> Curve:
        return self.curves.setdefault(name, Curve())

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


def between(before: RoundEvent, now: RoundEvent) -> dict[str, float | None]:
    """What a round did, from the cumulative counts before and after it."""
    own = now.groups["used_local"] - before.groups["used_local"]
    others = _external_uses(now.groups) - _external_uses(before.groups)
    seconds = now.wall_s - before.wall_s
    values: dict[str, float | None] = {
        "own groups": own,
        "others' groups": others,
        SHARE_OF_OTHERS: others / (own + others) if own + others > 0 else None,
        "seconds per round": seconds if seconds > 0 else None,
    }
    for name, counter in (("sent", "network/published_bytes"), ("received", "network/received_bytes")):
        if seconds > 0 and (moved := _moved(before.counters, now.counters, counter)) is not None:
            values[f"bytes {name} per second"] = moved / seconds
    return values


def _moved(before: Mapping[str, int], now: Mapping[str, int], counter: str) -> int | None:
    """None where the counter began anew, or the node does not have it."""
    moved = now.get(counter, 0) - before.get(counter, 0)
    return moved if counter in now and moved >= 0 else None


def _external_uses(groups: GroupCounts) -> int:
    return groups["used_external"] + groups.get("reused_external", 0)


def _same(one: MixDecision, other: MixDecision) -> bool:
    return (one.policy, one.local, one.external) == (other.policy, other.local, other.external)
