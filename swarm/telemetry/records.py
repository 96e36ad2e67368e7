"""The lines of a node's `metrics.jsonl`, one event each; writers and readers share these definitions.

Readers ignore unknown fields and events, so that they can read files of newer versions.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

import msgspec
from msgspec import Struct

from swarm.types import Estimate, Sample, SwarmWorth

METRICS_FILE = "metrics.jsonl"


class GroupCounts(TypedDict):
    """Outcomes of a node's groups; cumulative over its life, also across resumes."""

    generated: int
    """Groups this node generated."""
    shared: int
    """Own groups shared with the swarm."""
    received: int
    """Groups received from others, whatever their outcome."""
    used_local: int
    """Own groups used in an update."""
    used_external: int
    """Distinct received groups used in at least one update."""
    dropped: dict[str, int]
    """Received groups dropped without ever being used, by reason."""
    local: NotRequired[dict[str, int]]
    """Own groups not trained on, by reason."""
    reused_external: NotRequired[int]
    """Further uses of received groups already counted in `used_external`."""
    offered: NotRequired[int]
    """Groups that others offered and that could teach by their word, fetched or not."""
    checked: NotRequired[int]
    """Received groups whose grading began."""


class LearningFigures(Struct, frozen=True):
    """A learner after a step: its state, and the overlap model's prediction beside the measurement."""

    version: int
    max_staleness: int
    """The staleness bound; the figure `LAG_MAX` holds the observed maximum."""
    wait_s: float
    """Seconds this step waited for rollouts."""
    train_s: float
    workers: int
    """Workers present."""
    active: int
    rate: float
    """Expected rollouts per second of the active workers."""
    required_rate: float | None = None
    """The least rate that keeps the learner busy, by measured times; None when unknown or when no rate suffices."""
    broadcast_s: float | None = None
    bubble: float | None = None
    """Fraction of its time that it waited, over the last steps."""
    predicted_bubble: float | None = None


class MixDecision(Struct, frozen=True):
    """Composition of an update by a peer's mixing policy."""

    policy: str
    """`mix.policy`."""
    local: int
    """I."""
    external: int
    """J, before missing groups."""
    reason: str
    """In a few words; may be empty."""


class FollowingFigures(Struct, frozen=True):
    """A worker after a batch."""

    version: int | None
    """Version of the installed snapshot."""
    announced: int | None
    """Newest version that it knows of."""
    installed: int
    """Snapshots installed so far."""
    refused: int
    """Snapshots that did not fit or could not generate."""
    paused_s: float
    """Idle seconds of this process: lagging, not wanted, without its learner, or without room for its groups."""


class StartEvent(Struct, frozen=True, kw_only=True, tag_field="event", tag="start"):
    """A process started or resumed this node's training."""

    time: float
    """Unix seconds."""
    peer_id: str
    run_id: str | None = None
    name: str = ""
    """Display name of this node, e.g. `peer-1`."""
    role: str = ""
    """Empty from versions that did not say."""
    model: str = ""
    """Its model as other members see it, without a path; likewise."""
    rounds: int | None = None
    """Rounds to train for; None without a limit."""
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
    samples: tuple[Sample, ...] = ()
    """The first questions with their answers, the same questions at every evaluation."""


class SuiteScores(Struct, frozen=True):
    """Scores of an evaluation suite, over all its tasks or for one of them."""

    num_questions: int
    """Questions graded."""
    figures: dict[str, Estimate]
    """`avg@k`, `pass@1`, ..., `pass@k` with 95% intervals over the questions; empty without questions."""
    num_ungraded: int = 0
    """Questions whose answers could not be graded; in no figure."""
    num_unanswered: int = 0
    """Questions whose prompt left no room for a completion; they count as wrong."""
    num_cut_off: int = 0
    """Completions that reached `max_new_tokens`."""
    num_tokens: int = 0
    """Tokens of all completions."""


class SuiteEvent(Struct, frozen=True, kw_only=True, tag_field="event", tag="suite"):
    """The result of an evaluation suite."""

    time: float
    round: int
    """Rounds that the evaluated policy has trained; later events may come first if the suite ran beside training."""
    suite: str
    k: int
    """Completions per question."""
    scores: SuiteScores
    tasks: dict[str, SuiteScores] = {}
    seconds: float = 0.0
    """From the first question to the last grade."""


class RoundEvent(Struct, frozen=True, kw_only=True, tag_field="event", tag="round"):
    """One round, step or batch as every reader of the file knows it, whichever role and version wrote it."""

    time: float = 0.0
    round: int
    """Counts from 1."""
    wall_s: float = 0.0
    """Seconds of training in this process so far."""
    reward: float | None
    """Mean reward of this round's own completions; None when none was graded."""
    groups: GroupCounts
    local_shortfall: int = 0
    external_shortfall: int = 0
    filled: int = 0
    """Own groups that replaced missing external ones."""
    mix: MixDecision | None = None
    """A peer's decision for this round's update."""
    pool: int = 0
    """Unused received groups in the pool."""
    pending: int = 0
    """Received groups waiting to be verified."""
    peers: int = 0
    """Peers connected now."""
    alone_since: float | None = None
    """Unix time since when no peer is connected; None while one is."""
    tokens_generated: int = 0
    """Cumulative, like `groups`."""
    tokens_per_s: float | None = None
    figures: dict[str, float | None] = {}
    """Figures of the stages, by conventional name (`swarm/figures.py`); None for a value that was not finite."""
    tasks: dict[str, tuple[float, int]] = {}
    """(sum of rewards, completions) of this round's own groups by task."""
    counters: dict[str, int] = {}
    """Cumulative counts of network and verifier in this process, e.g. `network/drop_inbox`."""
    timings: dict[str, float] = {}
    """Seconds of this round by stage."""
    took_s: float = 0.0
    """Their sum, where a reader does not keep them."""
    processor_s: float | None = None
    """Processor seconds of this round, of all processes of the node; None where they were not counted."""
    problem: str = ""
    """Why none of the round's own questions got a group, with the first error's text; empty if one did."""
    neighbours: int | None = None
    """Other nodes that run on this machine; None where it was not looked, because nothing asked for it."""
    worth: SwarmWorth | None = None
    """Benefit of others' groups to this node; None when it is not measured."""
    learning: LearningFigures | None = None
    """Set for a learner, whose rounds are its steps."""
    following: FollowingFigures | None = None
    """Set for a worker, whose rounds are its batches of questions."""

    @property
    def seconds(self) -> float:
        """Wall-clock time of the round."""
        return self.took_s or sum(self.timings.values())


class CheckpointEvent(Struct, frozen=True, kw_only=True, tag_field="event", tag="checkpoint"):
    """A checkpoint is safely on disk."""

    time: float
    round: int
    path: str


class NoteEvent(Struct, frozen=True, kw_only=True, tag_field="event", tag="note"):
    """A message for people."""

    time: float
    text: str
    level: str = "info"
    """`info`, `warning` or `error`; `debug` for what only alerts show."""
    alert: str = ""
    """The alert that it reports, by its key: views that show alerts leave the note out. Or the counter of failures
    of which it reports the first."""


class PauseEvent(Struct, frozen=True, kw_only=True, tag_field="event", tag="pause"):
    """The node pauses; a further one gives a new reason."""

    time: float
    why: str
    until: float | None = None
    """Unix seconds; None when that is not known."""


class ResumeEvent(Struct, frozen=True, kw_only=True, tag_field="event", tag="resume"):
    """A paused node works again."""

    time: float
    paused_s: float


class EndEvent(Struct, frozen=True, kw_only=True, tag_field="event", tag="end"):
    """The process shut down cleanly."""

    time: float
    round: int
    reason: Literal["done", "interrupted", "error"]


Event = (
    StartEvent
    | EvaluationEvent
    | SuiteEvent
    | RoundEvent
    | CheckpointEvent
    | NoteEvent
    | PauseEvent
    | ResumeEvent
    | EndEvent
)

_encoder = msgspec.json.Encoder(enc_hook=float)
"""The hook converts numbers of other libraries: figures of a user's updater may be numpy's."""
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    """The event as one line, newline included."""
    return _encoder.encode(event) + b"\n"


def decode(line: bytes) -> Event | None:
    """The event on a line; None for a torn line or an unknown kind."""
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
