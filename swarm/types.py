"""The records that travel between the parts of a node and between nodes.

All frozen, all msgspec: the same definition is the schema on the wire, and what makes no sense as a number or a name
is refused when it is decoded. A question travels *by reference*; what a receiver needs to grade it, it regenerates
itself.
"""

from __future__ import annotations

from sys import getsizeof
from typing import Annotated, Literal

from msgspec import Meta, Struct

from swarm.reasons import Reason

SCHEMA_VERSION = 1

MAX_INTEGER = 2**63 - 1
MAX_NAME_CHARS = 256
MAX_STOPS = 64
MAX_COMPLETIONS = 256
ELEMENT_BYTES = 40
"""An item of a list and its place there, in memory."""

# Checked by msgspec when a record is decoded, and only then; NaN passes no bound.
Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Positive = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
Name = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
LogProb = Annotated[float, Meta(ge=-1e4, le=0)]
"""No sampler draws what is less likely; sums and squares over a whole group stay finite."""
Seconds = Annotated[float, Meta(ge=-1e11, le=1e11)]
"""Since 1970 or any other beginning."""
Reward = Annotated[float, Meta(ge=-1e9, le=1e9)]
Fraction = Annotated[float, Meta(ge=0, le=1)]

HELD_OUT_STREAMS = 2**62
"""Question streams from this seed on are for evaluation: no node trains on them."""


class ProceduralRef(Struct, frozen=True, tag="procedural", forbid_unknown_fields=True):
    """A generated question: whoever has the library and the task's options can make it again."""

    task: Name
    """Task name as the run's manifest lists it, e.g. `gcd`."""
    library: Name
    """Generator and version, e.g. `reasoning_gym==0.1.25`."""
    options_digest: Name
    """Digest of the task's canonical options."""
    seed: Count
    index: Count
    question_hash: Name
    """Digest of the question's text: a different library version is harmless while the text agrees."""


class DatasetRef(Struct, frozen=True, tag="dataset", forbid_unknown_fields=True):
    """A row of a data set."""

    task: Name
    dataset: Name
    """Hub id, or `local` for files; the rows are the same when `revision` is."""
    revision: Name
    """Hub revision, or the digest of the local files."""
    options_digest: Name
    row: Count
    question_hash: Name


TaskRef = ProceduralRef | DatasetRef


class Question(Struct, frozen=True):
    """A question as asked; its answer stays with the task source that made it."""

    ref: TaskRef
    prompt: str


class Sampling(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How completions were sampled. On the wire only what differs from the defaults."""

    temperature: Annotated[float, Meta(ge=0, le=1e6)] = 1.0
    top_p: Fraction = 1.0
    """Only the most likely tokens that together have this probability; 1: all."""
    max_new_tokens: Count = 256
    top_k: Count = 0
    """Keep the k most likely tokens; 0: all."""
    min_p: Fraction = 0.0
    """Only tokens at least so likely as this part of the most likely one's probability; 0: all."""
    stop: Annotated[tuple[Name, ...], Meta(max_length=MAX_STOPS)] = ()
    """Texts that end a completion, and stay in it."""
    stop_tokens: Annotated[tuple[Name, ...], Meta(max_length=MAX_STOPS)] = ()
    """Tokens, by name, that end a completion besides the policy's own end tokens."""


class VersionSpan(Struct, frozen=True, forbid_unknown_fields=True):
    """Adjacent tokens of a completion that were sampled from the same policy version."""

    version: Count
    num_tokens: Positive


FinishReason = Literal["stop", "stop_sequence", "length"]
"""`stop`: the policy's own end token; `stop_sequence`: a stop text or token of `Sampling`; `length`: cut off."""


class Completion(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One answer, the same from every engine and on the wire.

    `text` is what the swarm shares; ids and log-probabilities serve those with the same tokenizer.
    """

    text: str
    finish_reason: FinishReason
    token_ids: tuple[Count, ...] = ()
    logprobs: tuple[LogProb, ...] = ()
    """[T] log-probabilities of `token_ids` under the distribution they were sampled from."""
    versions: tuple[VersionSpan, ...] = ()
    """Which policy version sampled which of the T tokens, in order; new weights may enter in the middle."""
    routing: bytes = b""
    """The experts that prompt and completion but the last token met, as `swarm/policy/routing.py` stores them; never
    shared."""


class PolicyId(Struct, frozen=True, forbid_unknown_fields=True):
    """Which policy spoke."""

    model: Name
    tokenizer_hash: Name
    version: Count
    """Number of updates applied when the group was sampled."""


class RolloutGroup(Struct, frozen=True, forbid_unknown_fields=True):
    """One question with all G completions, as its sender signs it: an advantage needs every reward of its group."""

    run_id: Name
    """Empty until the group is shared."""
    peer_id: Name
    sequence: Count
    """Increases with every group a peer publishes, also across restarts: milliseconds since 1970 at its start, then
    one more for each."""
    created_at: Seconds
    """Unix seconds on the sender's clock."""
    policy: PolicyId
    sampling: Sampling
    question: TaskRef
    completions: Annotated[tuple[Completion, ...], Meta(max_length=MAX_COMPLETIONS)]
    """[G]"""
    rewards: Annotated[tuple[Reward, ...], Meta(max_length=MAX_COMPLETIONS)]
    """[G] the sender's rewards: telemetry only, never trained on by a receiver."""
    log_expectation: LogProb | None = None
    """GEPO's log of the expectation of the sampler over all G completions, at most 0; None when it is not known."""
    schema_version: int = SCHEMA_VERSION

    @property
    def num_chars(self) -> int:
        """Characters of all texts."""
        return sum(len(completion.text) for completion in self.completions)

    @property
    def num_elements(self) -> int:
        """Token ids, log-probabilities and version spans of all completions."""
        return sum(len(c.token_ids) + len(c.logprobs) + len(c.versions) for c in self.completions)

    @property
    def memory_bytes(self) -> int:
        """About what it takes in memory: one wide character makes all of its text as wide."""
        return sum(map(getsizeof, (c.text for c in self.completions))) + ELEMENT_BYTES * self.num_elements


class GradedGroup(Struct, frozen=True):
    """A group with this node's own question text and rewards: its sender's are never trained on."""

    group: RolloutGroup
    prompt: str
    rewards: tuple[float, ...]
    """[G] from this node's verifier."""


class Grade(Struct, frozen=True):
    """A verifier's word on one group: all that comes back from the process that read the texts."""

    prompt: str
    rewards: tuple[float, ...]
    """[G]"""
    seconds: float = 0.0
    """What it took to make the question again and score its completions."""


class Rejection(Struct, frozen=True):
    """Why a question was not answered, or a group not graded."""

    reason: Reason
    detail: str = ""
    seconds: float = 0.0
    """As in `Grade`."""


Answers = tuple[Completion, ...] | Rejection
"""What an engine makes of one prompt: [G] completions, or why there are none."""


class TaskSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A task as a manifest carries it: enough for a stranger to set up the same source."""

    name: Name
    kind: Name
    weight: Annotated[float, Meta(ge=0, le=1e9)]
    settings: dict[str, object]
    """The task's configuration as plain JSON values, defaults left out."""


class RunManifest(Struct, frozen=True, forbid_unknown_fields=True):
    """What a run is: served by every member, signed by its founder."""

    run_id: str
    """`NAME-DIGEST`, the digest taken from `founder`: a run id names its owner, so it cannot be claimed by another."""
    founder: str
    """Peer id of the key that signed it."""
    created_at: Seconds
    tasks: tuple[TaskSpec, ...]
    group_size: Positive
    local: Count
    external: Count
    max_record_bytes: Positive
    max_completion_chars: Positive
    schema_version: int = SCHEMA_VERSION


class ChunkList(Struct, frozen=True, forbid_unknown_fields=True):
    """What bytes look like when they travel in chunks of one size; the last may be shorter."""

    num_bytes: Positive
    chunk_bytes: Positive
    chunk_ids: tuple[bytes, ...]
    """Digest of each chunk, 16 bytes."""

    def size(self, index: int) -> int:
        """Bytes of chunk `index`."""
        return min(self.chunk_bytes, self.num_bytes - index * self.chunk_bytes)


class SnapshotManifest(Struct, frozen=True, forbid_unknown_fields=True):
    """A learner's weights at one version, signed by its key: whoever holds some of them can prove that they are its."""

    run_id: str
    learner: str
    """Peer id of the key that signed it."""
    version: Count
    digest: bytes
    """Of the whole, 32 bytes."""
    whole: ChunkList
    parent: Count | None = None
    """The version that `change` is to be applied to."""
    change: ChunkList | None = None
    """The lossless delta from the parent; None where the whole is no larger."""


class PeerRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """A peer's entry in the DHT, signed by its key and short-lived."""

    run_id: str
    peer_id: str
    multiaddrs: tuple[str, ...]
    model: str
    tasks: tuple[str, ...]
    role: str
    version: str
    expires_at: Seconds


class NetworkStatus(Struct, frozen=True):
    """What the network side of a node looks like now."""

    run_id: str | None
    connected: tuple[str, ...]
    """Peer ids that are connected and take part in the run, bootstraps included."""
    alone_since: float | None
    """Unix seconds since when no peer has been connected; None while there is one."""
    detail: str = ""
    """One line: what was tried last and how it ended."""


class UpdateReport(Struct, frozen=True):
    """What one policy update did, in numbers only: it goes to whoever asked for the update."""

    figures: dict[str, float] = {}
    """By conventional name; see `swarm/figures.py`. Of the steps taken."""
    skipped: bool = False
    """True when the loss or gradient was not finite and no step was taken, or there was nothing to learn from."""


class Heartbeat(Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker tells its learner about itself; counts are cumulative since its process began."""

    started_at: Seconds
    """Unix seconds on the worker's clock: another value means another process, whose counts begin at 0."""
    version: Count | None
    """The snapshot it samples from; None before the first."""
    num_completions: Annotated[int, Meta(ge=0, le=2**53)]
    reward: Annotated[float, Meta(ge=-1e15, le=1e15)]
    """Sum of the rewards of these completions under its own verifier: telemetry only."""
    price: Annotated[float, Meta(ge=0, le=1e9)]
    """What it costs an hour, in the run's currency."""


class Orders(Struct, frozen=True, forbid_unknown_fields=True):
    """What a learner answers a worker."""

    version: Count
    """The learner's own."""
    max_staleness: Count
    active: bool
    """Whether its rollouts are wanted now."""
    finished: bool = False
    """The learner has made all its steps: there is nothing more to do."""
