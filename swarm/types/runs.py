"""Runs: their manifest, members, snapshots and workers."""

from __future__ import annotations

from math import inf
from typing import Annotated

from msgspec import Meta, Struct

from swarm.types.bounds import (
    MAX_MULTIADDRS,
    MAX_TEMPERATURE,
    MAX_TOLD_TASKS,
    MAX_TRUSTED,
    Count,
    Fraction,
    Name,
    Positive,
    Seconds,
    complete,
)


class TaskSpec(Struct, frozen=True):
    """A task as a manifest carries it: any peer can build the same source from it."""

    name: Name
    kind: Name
    weight: Annotated[float, Meta(ge=0, le=1e9)]
    settings: dict[str, object]
    """The task's configuration as plain JSON values, defaults left out."""


class Terms(Struct, frozen=True):
    """What a worker and its learner must agree on."""

    model: Name
    """The model's public name."""
    temperature: Annotated[float, Meta(ge=0, le=MAX_TEMPERATURE)]
    top_p: Fraction
    top_k: Count
    min_p: Fraction
    system_prompt: Name
    """Its digest."""
    tokenizer_hash: Name = ""
    """Empty while no model is loaded, as in a manifest."""
    template: Name = ""
    """Digest of the chat template; likewise."""
    rounded: Name = ""
    """To what frozen weights beside adapters are rounded, `int8` or `nf4`; empty for neither."""
    processor: Name = ""
    """Digest of the settings of the model's processor; empty without one, and while no model is loaded."""
    adapters: Name = ""
    """Rank, alpha and targets, or that there are none; empty from versions that do not say."""
    base: Name = ""
    """Digest of the frozen weights beside adapters; empty without adapters, and while no model is loaded."""
    template_kwargs: Name = ""
    """Values of the chat template as JSON, or a digest of many; empty from versions that do not say."""


class RunManifest(Struct, frozen=True, omit_defaults=True):
    """The definition of a run: signed by its founder, served by every member."""

    run_id: str
    """`NAME-DIGEST` with the digest of `founder`: a run id names its owner, so that no other peer can claim it."""
    founder: str
    """Peer id of the key that signed it."""
    created_at: Seconds
    tasks: tuple[TaskSpec, ...]
    group_size: Positive
    local: Count
    external: Count
    max_record_bytes: Positive
    max_completion_chars: Positive
    terms: Terms | None = None
    """Of the learner that founded the run; None for a run without one."""
    trusted: Annotated[tuple[Name, ...], Meta(max_length=MAX_TRUSTED)] = ()
    """Peer ids whose episodes with custom tools count in this run."""


class ChunkList(Struct, frozen=True):
    """How bytes are cut into chunks of one size; the last may be shorter."""

    num_bytes: Positive
    chunk_bytes: Positive
    chunk_ids: tuple[bytes, ...]
    """Digest of each chunk, 16 bytes."""

    def size(self, index: int) -> int:
        """Bytes of chunk `index`."""
        return min(self.chunk_bytes, self.num_bytes - index * self.chunk_bytes)


class SnapshotManifest(Struct, frozen=True):
    """A learner's weights at one version, signed by its key: any holder of chunks can prove their origin."""

    run_id: str
    learner: str
    """Peer id of the key that signed it."""
    version: Count
    digest: bytes
    """Digest of the whole, 32 bytes."""
    whole: ChunkList
    parent: Count | None = None
    """The version that `change` applies to."""
    change: ChunkList | None = None
    """The lossless delta from the parent; None when it is not smaller than the whole."""


MAX_TRIES = 16
Tries = Annotated[dict[Name, tuple[Count, Count]], Meta(max_length=MAX_TRIES)]
"""(right, all) completions of the latest own questions, by kind of question as `swarm.sapo.curriculum` names it."""


class MemberSummary(Struct, frozen=True, omit_defaults=True):
    """How far a member says it is: self-reported and unchecked."""

    rounds: Count
    """Rounds, steps or batches."""
    given: Count = 0
    """Groups shared."""
    used: Count = 0
    """Groups of others that an update has used, each once."""
    correct: Count = 0
    asked: Count = 0
    """Held-out questions of its last evaluation; 0 without one. Whoever shows an accuracy computes its interval."""
    evaluated_at: Count = 0
    """Rounds trained before that evaluation."""
    weights: Count | None = None
    """Version of a learner's or worker's weights."""
    tries: Tries = {}


class PeerRecord(Struct, frozen=True, omit_defaults=True):
    """A peer's short-lived DHT entry, signed by its key."""

    run_id: str
    peer_id: str
    multiaddrs: Annotated[tuple[Name, ...], Meta(max_length=MAX_MULTIADDRS)]
    model: Name
    tasks: Annotated[tuple[Name, ...], Meta(max_length=MAX_TOLD_TASKS)]
    role: Name
    version: Name
    expires_at: Seconds
    name: Name = ""
    """What its user calls it; not unique, and no evidence of anything. Empty if it was not named."""
    pulls: bool = False
    """Whether it fetches groups that are offered to it; false for versions that know no offers."""
    summary: MemberSummary | None = None
    """Only of members that chose to tell."""


class NetworkStatus(Struct, frozen=True):
    """The current state of a node's network."""

    run_id: str | None
    connected: tuple[str, ...]
    """Peer ids of connected members of the run, bootstraps included."""
    alone_since: float | None
    """Unix time since when no peer has been connected; None while one is connected."""
    detail: str = ""
    """One line: the last attempt and its result."""
    split: str = ""
    """One line: which other protocol version most peers speak, and what to do; empty otherwise."""
    num_pulling: int = 0
    """How many of the connected members fetch groups that are offered to them."""
    num_described: int = 0
    """Of how many of them that is known."""
    offers_per_s: float = inf
    """How many groups each member may offer per second, so that links carry what all offer together."""


class Heartbeat(Struct, frozen=True):
    """A worker's report to its learner; counts are cumulative since its process started."""

    started_at: Seconds
    """Unix seconds on the worker's clock: a new value means a new process, whose counts start at 0."""
    version: Count | None
    """The snapshot that it samples from; None before the first."""
    num_completions: Annotated[int, Meta(ge=0, le=2**53)]
    reward: Annotated[float, Meta(ge=-1e15, le=1e15)]
    """Sum of the rewards of these completions under its own verifier: telemetry only, and a claim."""
    price: Annotated[float, Meta(ge=0, le=1e9)]
    """Cost per hour, in the run's currency."""
    terms: Terms | None = None
    """The worker's; None from versions that do not say."""


class Orders(Struct, frozen=True):
    """A learner's response to a worker's heartbeat."""

    version: Count
    """The learner's current version."""
    max_staleness: Count
    active: bool
    """Whether the learner wants this worker's rollouts now."""
    finished: bool = False
    """The learner has made all its steps; the worker can stop."""
    terms: Terms | None = None
    """The learner's; None from versions that do not say."""
    invited: bool = True
    """Whether the learner takes this worker's groups at all."""


complete(globals())
