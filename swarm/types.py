"""The records that travel between the parts of a node and between nodes.

All frozen, all msgspec: the same definition is the schema on the wire. A question travels *by reference*; what a
receiver needs to grade it, it regenerates itself.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

SCHEMA_VERSION = 1

HELD_OUT_STREAMS = 2**62
"""Question streams from this seed on are for evaluation: no node trains on them."""


class ProceduralRef(Struct, frozen=True, tag="procedural", forbid_unknown_fields=True):
    """A generated question: whoever has the library and the task's options can make it again."""

    task: str
    """Task name as the run's manifest lists it, e.g. `gcd`."""
    library: str
    """Generator and version, e.g. `reasoning_gym==0.1.25`."""
    options_digest: str
    """Digest of the task's canonical options."""
    seed: int
    index: int
    question_hash: str
    """Digest of the question's text: a different library version is harmless while the text agrees."""


class DatasetRef(Struct, frozen=True, tag="dataset", forbid_unknown_fields=True):
    """A row of a data set."""

    task: str
    dataset: str
    """Hub id, or `local` for files; the rows are the same when `revision` is."""
    revision: str
    """Hub revision, or the digest of the local files."""
    options_digest: str
    row: int
    question_hash: str


TaskRef = ProceduralRef | DatasetRef


class Question(Struct, frozen=True):
    """A question as asked; its answer stays with the task source that made it."""

    ref: TaskRef
    prompt: str


class Sampling(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How completions were sampled. On the wire only what differs from the defaults."""

    temperature: float = 1.0
    top_p: float = 1.0
    """Only the most likely tokens that together have this probability; 1: all."""
    max_new_tokens: int = 256
    top_k: int = 0
    """Only the so many most likely tokens; 0: all."""
    min_p: float = 0.0
    """Only tokens at least so likely as this part of the most likely one's probability; 0: all."""
    stop: tuple[str, ...] = ()
    """Texts that end a completion, and stay in it."""
    stop_tokens: tuple[str, ...] = ()
    """Tokens, by name, that end a completion besides the policy's own end tokens."""


class VersionSpan(Struct, frozen=True, forbid_unknown_fields=True):
    """Adjacent tokens of a completion that were sampled from the same policy version."""

    version: int
    num_tokens: int


FinishReason = Literal["stop", "stop_sequence", "length"]
"""`stop`: the policy's own end token; `stop_sequence`: a stop text or token of `Sampling`; `length`: cut off."""


class Completion(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One answer. `text` is what the swarm shares; ids and log-probabilities serve those with the same tokenizer."""

    text: str
    finish_reason: FinishReason
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """[T] log-probabilities of `token_ids` under the distribution they were sampled from."""
    versions: tuple[VersionSpan, ...] = ()
    """Which policy version sampled which of the T tokens, in order; new weights may enter in the middle."""
    routing: bytes = b""
    """The experts that prompt and completion but the last token met, as `swarm/policy/routing.py` stores them; never
    shared."""


class PolicyId(Struct, frozen=True, forbid_unknown_fields=True):
    """Which policy spoke."""

    model: str
    tokenizer_hash: str
    version: int
    """Number of updates applied when the group was sampled."""


class RolloutGroup(Struct, frozen=True, forbid_unknown_fields=True):
    """One question with all G completions: an advantage needs every reward of its group."""

    run_id: str
    """Empty until the group is shared."""
    peer_id: str
    sequence: int
    """Increases with every group a peer publishes, also across restarts."""
    created_at: float
    """Unix seconds on the sender's clock."""
    policy: PolicyId
    sampling: Sampling
    question: TaskRef
    completions: tuple[Completion, ...]
    """[G]"""
    rewards: tuple[float, ...]
    """[G] the sender's rewards: telemetry only, never trained on by a receiver."""
    log_expectation: float | None = None
    """GEPO's log of the expectation of the sampler over all G completions, at most 0; None when it is not known."""
    schema_version: int = SCHEMA_VERSION


class GradedGroup(Struct, frozen=True):
    """A group with this node's own question text and rewards."""

    group: RolloutGroup
    prompt: str
    rewards: tuple[float, ...]
    """[G] from this node's verifier."""


class Grade(Struct, frozen=True):
    """A verifier's word on one group."""

    prompt: str
    rewards: tuple[float, ...]
    """[G]"""
    seconds: float = 0.0
    """What it took to make the question again and score its completions."""


class Rejection(Struct, frozen=True):
    """Why a question was not answered, or a group not graded."""

    reason: str
    detail: str = ""
    seconds: float = 0.0
    """As in `Grade`."""


Answers = tuple[Completion, ...] | Rejection
"""What an engine makes of one prompt: [G] completions, or why there are none."""


class TaskSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A task as a manifest carries it: enough for a stranger to set up the same source."""

    name: str
    kind: str
    weight: float
    settings: dict[str, object]
    """The task's configuration as plain JSON values, defaults left out."""


class RunManifest(Struct, frozen=True, forbid_unknown_fields=True):
    """What a run is: served by every member, signed by its founder."""

    run_id: str
    """`NAME-DIGEST`, the digest taken from `founder`: a run id names its owner, so it cannot be claimed by another."""
    founder: str
    """Peer id of the key that signed it."""
    created_at: float
    tasks: tuple[TaskSpec, ...]
    group_size: int
    local: int
    external: int
    max_record_bytes: int
    max_completion_chars: int
    schema_version: int = SCHEMA_VERSION


class ChunkList(Struct, frozen=True, forbid_unknown_fields=True):
    """What bytes look like when they travel in chunks of one size; the last may be shorter."""

    num_bytes: int
    chunk_bytes: int
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
    version: int
    digest: bytes
    """Of the whole, 32 bytes."""
    whole: ChunkList
    parent: int | None = None
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
    expires_at: float


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
    """What one policy update did."""

    loss: float
    grad_norm: float
    num_sequences: int
    num_tokens: int
    clip_fraction: float
    skipped: bool = False
    """True when the loss or gradient was not finite and no step was taken, or there was nothing to learn from."""
    ess: float = 1.0
    """Effective sample size of the tokens' ratios to the behaviour policy, as a part of their number: 1 on-policy."""
    sequence_ess: float = 1.0
    """The same of completions, whose ratio is the product over their tokens."""
    entropy: float = 0.0
    """Mean over tokens of the entropy of the distribution each was taken from, in nats."""
    max_ratio: float = 1.0
    """The largest of these ratios."""
    behaviour_kl: float = 0.0
    """Divergence of the behaviour policy from the trained one, nats a token, whether penalised or not."""
    reference_kl: float = 0.0
    """Divergence from the reference policy, nats a token; 0 where there is none."""
    importance_cap_fraction: float = 0.0
    """Part of the tokens whose importance weight was truncated or masked."""
    mismatch: float = 0.0
    """Mean |log-probability here - the engine's| over own tokens; with a lag of 0, at the first step, that is how far
    engine and trainer are apart."""
    lag: float = 0.0
    """Updates between the policy that sampled a token and the one that trains on it, mean over own groups' tokens."""
    max_lag: int = 0
    """The largest of these lags."""


class Heartbeat(Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker tells its learner about itself; counts are cumulative since its process began."""

    started_at: float
    """Unix seconds on the worker's clock: another value means another process, whose counts begin at 0."""
    version: int | None
    """The snapshot it samples from; None before the first."""
    num_completions: int
    reward: float
    """Sum of the rewards of these completions under its own verifier: telemetry only."""
    price: float
    """What it costs an hour, in the run's currency."""


class Orders(Struct, frozen=True, forbid_unknown_fields=True):
    """What a learner answers a worker."""

    version: int
    """The learner's own."""
    max_staleness: int
    active: bool
    """Whether its rollouts are wanted now."""
    finished: bool = False
    """The learner has made all its steps: there is nothing more to do."""
