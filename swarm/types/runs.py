"""Runs: their manifest, members, snapshots and workers."""

from __future__ import annotations

from math import inf
from typing import Annotated

from msgspec import Meta, Struct

from swarm.types.bounds import (
    MAX_MEASURED,
    MAX_MULTIADDRS,
    MAX_TEMPERATURE,
    MAX_TOLD_TASKS,
    MAX_TRUSTED,
    MEASURED_BYTES,
    Count,
    Fraction,
    Name,
    Positive,
    Seconds,
    complete,
)


class UpdateReport(Struct, frozen=True):
    """The result of one policy update, in numbers only: it goes to whoever asked for the update."""

    figures: dict[str, float] = {}
    """Figures of the steps taken, by conventional name; see `swarm/figures.py`."""
    skipped: bool = False
    """True when no step was taken: the loss or gradient was not finite, or there was nothing to learn from."""


class Estimate(Struct, frozen=True):
    """A measured figure with its 95% interval."""

    value: float
    low: float
    high: float


NEEDED_ROUNDS = 16
"""Measured rounds with own and external groups before anything is known of what others' groups do."""


class SwarmWorth(Struct, frozen=True):
    """What others' groups do for a node, as `swarm/sapo/worth.py` estimates it over its last measured rounds."""

    rounds: int
    """Rounds measured."""
    help: Estimate | None = None
    """Progress of its updates over that of updates on its own groups alone; None while unknown."""
    each: Estimate | None = None
    """Worth of an external group, in own groups."""
    senders: dict[str, Estimate] = {}
    """The same by the group's author, of those that are known well enough."""
    compared: int = 0
    """Rounds among them with own and others' groups in the update."""
    rounds_left: int | None = None
    """Rounds, measured or not, until `help` will be known if they go on as the last ones; None once it is known, and
    while even that cannot be estimated."""
    time_alone: float | None = None
    """Time of a round alone over that of a round with others (`swarm/sapo/worth.py`); None while unknown."""

    @property
    def help_in_time(self) -> Estimate | None:
        """Progress over that alone in the same time, not in as many rounds; None while unknown."""
        if self.help is None or self.time_alone is None:
            return None
        return Estimate(*(self.time_alone * each for each in (self.help.value, self.help.low, self.help.high)))


complete(globals())


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
    """Terms of the learner that founded the run; None for a run without one."""
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
    measured: Annotated[bytes, Meta(max_length=MAX_MEASURED * MEASURED_BYTES)] = b""
    """What one group of each author is worth to it, as `swarm/net/trust/credit.py` writes it."""


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
    """Connected members of which that is known."""
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
