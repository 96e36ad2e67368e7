"""The lines of a node's `metrics.jsonl`: one event each, the same definitions for the writer and every reader.

Readers ignore fields and events that they do not know, so a file of a newer version can still be read.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

import msgspec
from msgspec import Struct

METRICS_FILE = "metrics.jsonl"


class GroupCounts(TypedDict):
    """What became of a node's groups, all cumulative over its life, also across resumes."""

    generated: int
    """Groups this node generated."""
    shared: int
    """Own groups handed to the swarm."""
    received: int
    """Groups of others that arrived, whatever became of them."""
    used_local: int
    """Own groups that went into an update."""
    used_external: int
    """Distinct received groups that went into at least one update."""
    dropped: dict[str, int]
    """Received groups that were given up without ever being used, by reason."""
    local: NotRequired[dict[str, int]]
    """Own groups that were not trained on, by reason."""
    reused_external: NotRequired[int]
    """Further uses of received groups already counted in `used_external`."""


class LearningFigures(Struct, frozen=True):
    """A learner after a step: what it has, and what the overlap model says beside what is measured."""

    version: int
    max_staleness: int
    """The budget; what was seen is the figure `LAG_MAX`."""
    wait_s: float
    """Of this step, for rollouts."""
    train_s: float
    workers: int
    """Present."""
    active: int
    rate: float
    """Rollouts a second to count on from the active ones."""
    required_rate: float | None = None
    """The least that keeps the learner busy, by the measured times; None where it is not known, or nothing would."""
    broadcast_s: float | None = None
    bubble: float | None = None
    """Part of its time that it waited, over the last steps."""
    predicted_bubble: float | None = None


class FollowingFigures(Struct, frozen=True):
    """A worker after a batch."""

    version: int | None
    """The snapshot installed."""
    announced: int | None
    """The newest that it knows of."""
    installed: int
    """Snapshots so far."""
    refused: int
    """Snapshots that could not be used."""
    paused_s: float
    """In this process so far: lagging, not wanted, without its learner, or without room for its groups."""


class StartEvent(Struct, frozen=True, kw_only=True, tag_field="event", tag="start"):
    """A process began, or resumed, this node's training."""

    time: float
    """Unix seconds."""
    peer_id: str
    run_id: str | None = None
    name: str = ""
    """What people call this node, e.g. `peer-1`."""
    rounds: int | None = None
    """Rounds to train for; None without an end."""
    config: dict[str, object] = {}
    versions: dict[str, str] = {}
    resumed_from: int | None = None
    """Round of the checkpoint that was loaded; None for a fresh start."""


class EvaluationEvent(Struct, frozen=True, kw_only=True, tag_field="event", tag="evaluation"):
    """Accuracy on held-out questions."""

    time: float
    round: int
    """Rounds trained so far: 0 before the first."""
    accuracy: float | None
    num_questions: int
    tasks: dict[str, tuple[int, int]] = {}
    """(correct, asked) by task."""


class RoundEvent(Struct, frozen=True, kw_only=True, tag_field="event", tag="round"):
    """One round, step or batch as every reader of the file knows it, whichever role and version wrote it."""

    time: float = 0.0
    round: int
    """Counts from 1."""
    wall_s: float = 0.0
    """Seconds of training in this process so far."""
    reward: float | None
    """Mean reward of the completions this node generated this round; 0 when there were none."""
    groups: GroupCounts
    local_shortfall: int = 0
    external_shortfall: int = 0
    filled: int = 0
    """Own groups that took the place of missing external ones."""
    pool: int = 0
    """Received groups in the pool that have not been used yet."""
    pending: int = 0
    """Received groups waiting to be verified."""
    peers: int = 0
    """Peers connected now."""
    alone_since: float | None = None
    """Unix seconds; None while a peer is connected."""
    tokens_generated: int = 0
    """Cumulative, like `groups`."""
    tokens_per_s: float | None = None
    figures: dict[str, float | None] = {}
    """What the stages report, by conventional name (`swarm/figures.py`); None for a value that was not finite."""
    tasks: dict[str, tuple[float, int]] = {}
    """(sum of rewards, completions) of this round's own groups by task."""
    counters: dict[str, int] = {}
    """Cumulative in this process: what network and verifier did and dropped, e.g. `network/drop_inbox`."""
    timings: dict[str, float] = {}
    """Seconds of this round by stage."""
    learning: LearningFigures | None = None
    """Of a learner, whose rounds are its steps."""
    following: FollowingFigures | None = None
    """Of a worker, whose rounds are its batches of questions."""


class CheckpointEvent(Struct, frozen=True, kw_only=True, tag_field="event", tag="checkpoint"):
    """A checkpoint is safely on disk."""

    time: float
    round: int
    path: str


class NoteEvent(Struct, frozen=True, kw_only=True, tag_field="event", tag="note"):
    """Something a person should see."""

    time: float
    text: str
    level: str = "info"
    """`info`, `warning` or `error`."""


class EndEvent(Struct, frozen=True, kw_only=True, tag_field="event", tag="end"):
    """The process stopped in an orderly way."""

    time: float
    round: int
    reason: Literal["done", "interrupted", "error"]


Event = StartEvent | EvaluationEvent | RoundEvent | CheckpointEvent | NoteEvent | EndEvent

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    """The event as one line, newline included."""
    return _encoder.encode(event) + b"\n"


def decode(line: bytes) -> Event | None:
    """The event on a line, or None for one that is torn or of an unknown kind."""
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
