"""The seams of a node: what can be replaced, by another implementation or by a double in a test."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

from swarm.reasons import Outcome, Reason
from swarm.types import (
    Answers,
    Grade,
    GradedGroup,
    NetworkStatus,
    PeerRecord,
    Question,
    Rejection,
    RolloutGroup,
    RunManifest,
    Sampling,
    TaskRef,
    UpdateReport,
)

if TYPE_CHECKING:
    from torch import Tensor

RequestHandler = Callable[[str, bytes], bytes]
"""(remote peer id, request) -> response. Called on the network thread: must not block."""

StreamHandler = Callable[[str, bytes], Iterator[bytes | None]]
"""(remote peer id, request) -> chunks of the answer. Advanced on the network thread: must not block.

None: the next chunk is not there yet; the iterator is advanced again a little later.
"""


class TaskSource(Protocol):
    """Questions of one task, made and graded locally."""

    name: str

    def question(self, seed: int, index: int) -> Question:
        """Question `index` of the stream `seed`; the same arguments give the same question."""
        ...

    def recall(self, ref: TaskRef) -> Question:
        """The question behind a reference. Raises `Refusal` when it cannot be had here or its text differs."""
        ...

    def score(self, ref: TaskRef, completion: str) -> float:
        """Reward of one completion text, in [0, 1]."""
        ...


class Verifier(Protocol):
    """Draws questions and grades completions, away from the main process where need be."""

    def draw(self, seed: int, start: int, count: int) -> list[Question]:
        """Questions `start .. start + count - 1` of the weighted mixture's stream `seed`."""
        ...

    def grade(self, jobs: Sequence[tuple[TaskRef, Sequence[str]]]) -> list[Grade | Rejection]:
        """Grade groups and wait: one result a job, in order."""
        ...

    def begin(self, ref: TaskRef, texts: Sequence[str]) -> Future[Grade | Rejection]:
        """Grade one of this node's own groups without waiting; it goes before what `submit` queued."""
        ...

    def submit(self, key: str, ref: TaskRef, texts: Sequence[str], sender: str = "") -> None:
        """Queue a group for grading, on the account of `sender`; never blocks."""
        ...

    def collect(self) -> list[tuple[str, Grade | Rejection]]:
        """What has been graded since the last call."""
        ...

    def counters(self) -> dict[str, int]:
        """Cumulative counts of what went wrong: scorer failures, time-outs, crashes, overflow."""
        ...

    def close(self) -> None:
        """Stop the workers."""
        ...


class RolloutEngine(Protocol):
    """Generates completions with the node's policy."""

    def generate(self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int) -> list[Answers]:
        """G completions for each of P prompts, [P][G], or why a prompt has none: the others go on.

        A completion is a function of the weights, its prompt, `seed` and both indices, as far as arithmetic allows.
        Raises `SamplingError`, `Interrupted`.
        """
        ...

    def stream(
        self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int
    ) -> Generator[tuple[int, Answers]]:
        """As `generate`, each prompt's index and answers as soon as it has them all; closing it drops the rest."""
        ...


class StreamingEngine(RolloutEngine, Protocol):
    """Also takes other weights at any time.

    Tokens sampled from then on are theirs; a completion says which version sampled which of its tokens.
    """

    def check(self, sampling: Sampling) -> None:
        """Raises `SamplingError` for settings that cannot be used with this policy."""
        ...

    def swap(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Sample from other weights from the next decode step on; any thread may call.

        Raises `WeightsRefused` with the old ones in use.
        """
        ...

    def close(self) -> None:
        """Let go of what it holds; it cannot be used afterwards."""
        ...


class Updater(Protocol):
    """Owns the policy's weights and optimizer."""

    @property
    def version(self) -> int:
        """Updates applied so far."""
        ...

    @property
    def max_chars(self) -> int:
        """Characters of a completion beyond which the model cannot have room for it."""
        ...

    def fits(self, group: GradedGroup) -> bool:
        """Whether the model has room for the group's prompt with each of its completions."""
        ...

    def logprobs(self, groups: Sequence[GradedGroup]) -> list[list[list[float]]]:
        """This policy's log-probabilities of each token of others' completions, by group and completion."""
        ...

    def update(self, local: Sequence[GradedGroup], external: Sequence[GradedGroup]) -> UpdateReport:
        """One policy-gradient update on whole groups."""
        ...


class StreamingUpdater(Updater, Protocol):
    """Also takes an update's groups as they come, sampled by other nodes with this very policy's snapshots."""

    def refusal(self, group: GradedGroup) -> Reason | None:
        """Why this policy cannot have sampled the group as it says; None when it can."""
        ...

    def accumulate(self, groups: Sequence[GradedGroup]) -> None:
        """Add groups to the update that is open; the policy does not change."""
        ...

    def apply(self) -> UpdateReport:
        """Make the update of all groups accumulated: the same as if they had come at once."""
        ...

    def abandon(self) -> None:
        """Forget the update that is open."""
        ...

    def snapshot(self) -> bytes:
        """The policy as it is now, packed."""
        ...


class Auditor(Protocol):
    """Knows what each snapshot would have sampled."""

    def keep(self, version: int, snapshot: bytes) -> None:
        """Remember a published snapshot, and forget those that no admissible group can name any more."""
        ...

    def verdict(self, group: GradedGroup) -> Reason | None:
        """`wrong_logprobs` when the snapshots a group names did not give them, `wrong_version` when there are none."""
        ...


class RecordTransport(Protocol):
    """Records of a run in and out, and from whom. None of its methods blocks on the network but `wait`."""

    def status(self) -> NetworkStatus:
        """The network as it is now."""
        ...

    def publish(self, record: bytes) -> None:
        """Hand a record to everyone in the run; before a run is known it is dropped and counted.

        Peers that are there, that come back, or that come within the backfill time get it, once, in no particular
        order. A record larger than gossip carries is fetched by its receivers.
        """
        ...

    def has_room(self) -> bool:
        """Whether one more record can be published without another, which still waits to be sent, being lost for it."""
        ...

    def drain(self) -> list[bytes]:
        """Records that arrived since the last call, oldest first, raw and unverified."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Block until there is something to drain; whether there is."""
        ...

    def ban(self, peer_ids: Collection[str]) -> None:
        """Have nothing to do with these peers; each call replaces the set.

        Their connections are dropped and their new ones soon after they are made; their requests are refused, and so
        is what they published, whoever passes it on. Counted as `banned_connections`, `banned_streams` and
        `banned_gossip`.
        """
        ...

    def trust(self, peer_ids: Collection[str]) -> None:
        """Take in what these peers sign at a member's rate, and others' at a newcomer's; each call replaces the set."""
        ...

    def complaints(self) -> list[tuple[str, Reason]]:
        """(peer id, reason) of what peers did that speaks against them, since the last call."""
        ...


class RequestTransport(Protocol):
    """Questions between two peers. `request` and `stream` block on the network."""

    def serve(self, protocol: str, handler: RequestHandler) -> None:
        """Answer requests for `protocol`."""
        ...

    def request(self, peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> bytes:
        """Ask one peer; not from a request handler. Raises `PeerUnreachable`.

        A peer that is known but not connected is dialled first, within the same `timeout_s`.
        """
        ...

    def serve_stream(self, protocol: str, handler: StreamHandler) -> None:
        """Answer requests for `protocol` with as many bytes as it takes; each chunk is sent before the next is made."""
        ...

    def stream(
        self, peer_id: str, protocol: str, payload: bytes, timeout_s: float, max_bytes: int
    ) -> Generator[bytes, None, None]:
        """Ask one peer; chunks of its answer as they arrive, not as its handler cut them. Not from a handler.

        A peer that is known but not connected is dialled first. `timeout_s` is the longest silence; closing the
        iterator hangs up. Raises `PeerUnreachable` at the first or any later chunk: the answer is whole only when the
        iterator ends by itself.
        """
        ...


class PeerTransport(Protocol):
    """Which run this is, where this node is reached, and who else is there."""

    peer_id: str

    def manifest(self) -> RunManifest | None:
        """The run this node is in; None until it is known."""
        ...

    def sealed_manifest(self) -> bytes | None:
        """The manifest as its founder signed it, served to whoever asks."""
        ...

    def set_manifest(self, sealed: bytes) -> None:
        """Join the run of a sealed manifest. Raises `TransportError` when it is invalid or of another run."""
        ...

    def multiaddrs(self) -> tuple[str, ...]:
        """Addresses under which others can reach this node, each ending in `/p2p/PEER_ID`."""
        ...

    def peers(self) -> tuple[PeerRecord, ...]:
        """What others have said about themselves; entries may have expired."""
        ...


class Transport(RecordTransport, RequestTransport, PeerTransport, Protocol):
    """A network: moves bytes between peers."""

    def start(self) -> None:
        """Open the network. Raises `TransportError` when the stack itself cannot run; absent peers are no error."""
        ...

    def counters(self) -> dict[str, int]:
        """Cumulative counts.

        Records `published`, `delivered` by gossip, `repaired` and `backfilled` by asking peers, `fetched` because
        they were large, `duplicates`; drops by reason; failures and restarts.
        """
        ...

    def close(self) -> None:
        """Leave the swarm and stop every thread and process this transport started."""
        ...


NEWCOMERS = ""
"""What all peers without standing count as, together: one account, one author."""


class GroupExchange(Protocol):
    """Signed rollout groups in and out, over any transport."""

    def share(self, group: RolloutGroup) -> RolloutGroup | None:
        """Stamp with the run id, sign, publish; the group as published, or None when there is no run to publish to."""
        ...

    def receive(self) -> tuple[list[tuple[str, RolloutGroup]], dict[Reason, int]]:
        """(content id, group) of what arrived and passed the envelope checks, and refusals by reason."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Block until records have arrived; whether they have."""
        ...

    def account(self, peer_id: str) -> str:
        """On whose account a peer's groups take up room: its own once it was of use, all newcomers' before."""
        ...

    def report(self, peer_id: str, outcome: Outcome, verify_s: float = 0.0) -> None:
        """Tell what became of a received group.

        `verify_s`: seconds its verification took.
        """
        ...

    def established(self) -> frozenset[str]:
        """Peers that have been useful for long enough to count as authors of their own."""
        ...

    def status(self) -> NetworkStatus:
        """The network as it is now."""
        ...


class SnapshotPublisher(Protocol):
    """Where a learner puts its weights."""

    def publish(self, version: int, snapshot: bytes) -> None:
        """Make a snapshot (whole, packed weights) known to the run and serve it; returns at once. Versions only rise.

        Raises `SnapshotError` for a version that is not above every earlier one, those before a restart included.
        """
        ...


class SnapshotFeed(Protocol):
    """Where a worker gets its learner's weights from."""

    def newest(self) -> tuple[int, bytes] | None:
        """Version and whole packed bytes of the newest complete, verified snapshot; never blocks.

        None when there is none newer than the last one returned here.
        """
        ...

    def announced(self) -> int | None:
        """The newest version known to exist by the learner's signature, complete here or not."""
        ...
