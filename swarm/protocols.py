"""The interfaces between the parts of a node; other implementations and test doubles can replace each part."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from swarm.reasons import Fate, Outcome, Reason
from swarm.types import (
    Actions,
    Answers,
    Arrival,
    Commitment,
    Context,
    Grade,
    GradedGroup,
    MemberSummary,
    NetworkStatus,
    NextTurn,
    Observation,
    OfferedGroup,
    PeerRecord,
    Question,
    ReadTurn,
    ReceivedGroup,
    Rejection,
    RolloutGroup,
    RunManifest,
    Sampling,
    TaskRef,
    Terminal,
    UpdateReport,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor


RequestHandler = Callable[[str, bytes], bytes]
"""(remote peer id, request) -> response. Called on the network thread: must not block."""


class Wakeup(Protocol):
    """Something that may happen later, on the network thread."""

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` each time it happens."""

    def unwatch(self, wake: Callable[[], None]) -> None:
        """Do so no longer."""


StreamHandler = Callable[[str, bytes], Iterator[bytes | Wakeup | None]]
"""(remote peer id, request) -> chunks of the response. Advanced on the network thread: must not block. While the next
chunk is not ready, it yields what will bring one, or None: the caller tries again then, or a little later.
"""


class Episode(Protocol):
    """An episode after its first observation."""

    def step(self, action: str) -> Observation | Terminal:
        """What follows the policy's next turn; never called after the end."""


class Environment(Episode, Protocol):
    """Episodes, one at a time, each a pure function of its start and of the policy's turns, in every process.

    It knows no limits: the caller bounds turns, tokens and time. An action may be an untrusted peer's text: it must
    never be evaluated.
    """

    def reset(self, seed: int, index: int) -> Observation:
        """Begin episode `index` of the stream `seed`."""


class QuestionSource(Protocol):
    """Questions of one task, each by a reference from which every member makes it again."""

    name: str

    @property
    def num_held_out(self) -> int | None:
        """Questions of a held-out stream before one repeats; None when there is no end."""

    def question(self, seed: int, index: int) -> Question:
        """Question `index` of the stream `seed`, a pure function of both."""

    def recall(self, ref: TaskRef) -> Question:
        """The question behind a reference. Raises `Refusal` when this node cannot produce it or its text differs."""

    def is_held_out(self, ref: TaskRef) -> bool:
        """Whether only evaluations ask the question behind a reference that `recall` accepts."""


class TaskSource(QuestionSource, Protocol):
    """Questions made and graded locally: episodes of a single turn."""

    def score(self, ref: TaskRef, completion: str) -> float:
        """Reward of one completion text, in [0, 1]."""


@runtime_checkable
class EpisodeSource(QuestionSource, Protocol):
    """Questions that begin episodes of several turns."""

    def begin(self, ref: TaskRef) -> Episode:
        """The episode behind a reference that `recall` accepts. Raises `Refusal`."""


Source = TaskSource | EpisodeSource
"""Questions of any task."""


@runtime_checkable
class Answered(Protocol):
    """A source of questions that have one answer, which is looked for in completions."""

    def solution(self, ref: TaskRef) -> str:
        """The right answer to a question that `recall` accepts."""

    def found(self, ref: TaskRef, completion: str) -> str | None:
        """What counts as the answer to the question in a completion; None where there is none."""


class Verifier(Protocol):
    """Draws questions and grades completions, in other processes where necessary."""

    def draw(self, seed: int, start: int, count: int) -> list[Question]:
        """Questions `start .. start + count - 1` of the weighted mixture's stream `seed`."""

    def grade(self, jobs: Sequence[tuple[TaskRef, Sequence[Actions]]]) -> list[Grade | Rejection]:
        """Grade groups and wait: one result per job, in order.

        Each episode is replayed from its start. One that is not over is no error: its next turn can follow.
        """

    def begin_grading(self, ref: TaskRef, texts: Sequence[Actions]) -> Future[Grade | Rejection]:
        """Grade one of this node's own groups without waiting; it takes precedence over what `submit` queued."""

    def replay(self, ref: TaskRef, actions: Actions) -> Future[Grade | Rejection]:
        """What the environment answers in an own episode so far, without waiting.

        It may continue: its rewards count only when `begin_grading` grades it with its group.
        """

    def submit(self, key: str, ref: TaskRef, texts: Sequence[Actions], sender: str = "") -> None:
        """Queue a group for grading, on the account of `sender`; never blocks."""

    def collect(self) -> list[tuple[str, Grade | Rejection]]:
        """Results since the last call, by key."""

    def counters(self) -> dict[str, int]:
        """Cumulative counts of failures: scorer errors, time-outs, crashes, overflow."""

    def close(self) -> None:
        """Stop the workers."""


class TaskVerifier(Verifier, Protocol):
    """Also asks one task alone, and knows where its held-out questions end."""

    def draw(self, seed: int, start: int, count: int, task: str = "") -> list[Question]:
        """Questions `start .. start + count - 1` of stream `seed`: of one task, or of the weighted mixture of all."""

    def num_held_out(self, task: str) -> int | None:
        """Questions of a task's held-out streams before one repeats; None when there is no end."""


class Turns(Protocol):
    """Turns of episodes that become ready while an engine answers others. Used by the thread that reads the answers."""

    @property
    def num_episodes(self) -> int:
        """The number of sequences that are worth a slot each at one time."""

    @property
    def continuing(self) -> Collection[int]:
        """Episodes that may take another turn after the one taken last: what was read of them can be used again."""

    def next_turns(self, wait: bool) -> Sequence[NextTurn]:
        """Those that are ready; with `wait` at least one, or none if no more will follow.

        Wait only when all that were taken have been answered.
        """


class RolloutEngine(Protocol):
    """Generates completions with the node's policy."""

    def generate(
        self, prompts: Sequence[Context], num_completions: int, sampling: Sampling, seed: int
    ) -> list[Answers]:
        """G completions for each of P prompts, [P][G]; a failed prompt gets a `Rejection`, the others continue.

        A completion depends only on the weights, its prompt, `seed` and both indices, up to rounding. Raises
        `SamplingError`, `Interrupted`.
        """

    def stream(
        self,
        prompts: Sequence[Context],
        num_completions: int,
        sampling: Sampling,
        seed: int,
        turns: Turns | None = None,
    ) -> Generator[tuple[int, Answers]]:
        """Like `generate`, but yields each prompt's index and answers as soon as they are complete; closing it drops
        the rest.

        An engine that can, answers `turns`, too, each with a single completion and under the episode's name; the draws
        then depend on that name and the turn's number. Other engines leave them to the caller.
        """


class StreamingEngine(RolloutEngine, Protocol):
    """Also accepts new weights at any time.

    They sample all later tokens; a completion records which version sampled which of its tokens.
    """

    def check(self, sampling: Sampling) -> None:
        """Raises `SamplingError` for settings that do not work with this policy."""

    def swap(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Sample from other weights from the next decode step on; any thread may call it.

        Raises `WeightsRefused`; the old weights then stay in use.
        """

    def close(self) -> None:
        """Release all resources; the engine cannot be used afterwards."""


class Updater(Protocol):
    """Owns the policy's weights and optimizer."""

    @property
    def version(self) -> int:
        """Updates applied so far."""

    @property
    def max_chars(self) -> int:
        """The most characters of a completion that the model can have room for."""

    def fits(self, group: GradedGroup) -> bool:
        """Whether the model has room for the group's prompt with each of its completions."""

    def read(
        self, groups: Sequence[GradedGroup], wanted: Sequence[Sequence[bool]] | None = None
    ) -> list[list[list[ReadTurn]]]:
        """Others' completions in this policy's tokens, by group, completion and turn, with its log-probabilities of
        those that are `wanted`, [P][G]; by default of all."""

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """The advantages of a group's rewards, [G], as `update` computes them."""

    def update(self, local: Sequence[GradedGroup], external: Sequence[GradedGroup]) -> UpdateReport:
        """One policy-gradient update on whole groups."""


class GradientSketcher(Protocol):
    """Projects the gradient of each group of an update to a few numbers; the update itself stays the same."""

    @property
    def refusal(self) -> str | None:
        """Why this node's gradients cannot be sketched; None when they can."""

    @property
    def seconds(self) -> float:
        """Time that updates have spent on sketches so far."""

    def begin_sketches(self) -> None:
        """Sketch the groups of the next update."""

    def take_sketches(self) -> npt.NDArray[np.float32] | None:
        """The sketches [groups, numbers] of the update since `begin_sketches`, local groups first; None without one.

        Groups without a token have none. The mean over the groups of a step is the sketch of its gradient, before
        clipping. Inner products of sketches estimate those of gradients.
        """


class RecordTransport(Protocol):
    """Sends and receives the records of a run. Only `wait` blocks on the network."""

    def status(self) -> NetworkStatus:
        """The network as it is now."""

    def publish(self, record: bytes) -> None:
        """Send a record to everyone in the run; without a known run it is dropped and counted.

        Peers that are connected, reconnect, or join within the backfill time receive it once, in no particular order.
        Receivers fetch a record that is too large for feeds.
        """

    def hold(self, record: bytes) -> None:
        """Keep a record for peers that ask for it by its id; it is sent to no other."""

    def pull(self, offered: OfferedGroup, patience_s: float) -> None:
        """Fetch a record on offer, from its author or another holder; it arrives like any other.

        If the author was asked and no peer gave it within `patience_s`, that is a complaint about its author.
        """

    def has_room(self) -> bool:
        """Whether one more record can be published without displacing another that still waits to be sent."""

    def drain(self) -> list[Arrival]:
        """What arrived since the last call, oldest first, verified and opened, or why it was refused."""

    def wait(self, timeout_s: float) -> bool:
        """Block until there is something to drain; returns whether there is."""

    def ban(self, peer_ids: Collection[str]) -> None:
        """Ban these peers; each call replaces the set.

        Their connections are closed, new ones soon after they open; their requests are refused, and so are records they
        published, whoever forwards them. Counted as `banned_connections`, `banned_streams` and `banned_gossip`.
        """

    def trust(self, peer_ids: Collection[str], known: Collection[str] = (), newcomers: float = 1.0) -> None:
        """Rate-limit records that these peers sign as a member's and all others as a newcomer's; each call replaces the
        set. For the common rate of offers they and `known` authors count in full, all others `newcomers` times."""

    def complaints(self) -> list[tuple[str, Reason]]:
        """(peer id, reason) of peers' offences since the last call."""


class RequestTransport(Protocol):
    """Requests between two peers. `request` and `stream` block on the network."""

    def serve(self, protocol: str, handler: RequestHandler) -> None:
        """Answer requests for `protocol`."""

    def request(self, peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> bytes:
        """Ask one peer; never from a request handler.

        Raises `PeerUnreachable`. A known peer without a connection is dialled first, within the same `timeout_s`.
        """

    def serve_stream(self, protocol: str, handler: StreamHandler) -> None:
        """Answer requests for `protocol` with any number of bytes; each chunk is sent before the next is made."""

    def stream(
        self, peer_id: str, protocol: str, payload: bytes, timeout_s: float, max_bytes: int
    ) -> Generator[bytes, None, None]:
        """Ask one peer; yields the response's bytes as they arrive, not in its handler's chunks.

        Never from a handler. A known peer without a connection is dialled first. `timeout_s` bounds the time between
        chunks; closing the iterator closes the stream. Raises `PeerUnreachable` at the first or any later chunk: the
        response is complete only when the iterator ends normally.
        """


class PeerTransport(Protocol):
    """The run, this node's addresses, and the other peers."""

    peer_id: str

    def manifest(self) -> RunManifest | None:
        """The run this node is in; None until it is known."""

    def sealed_manifest(self) -> bytes | None:
        """The manifest as its founder signed it; any peer may ask for it."""

    def set_manifest(self, sealed: bytes) -> None:
        """Join the run of a sealed manifest. Raises `TransportError` when it is invalid or of another run."""

    def multiaddrs(self) -> tuple[str, ...]:
        """Addresses where others can reach this node, each ending in `/p2p/PEER_ID`."""

    def peers(self) -> tuple[PeerRecord, ...]:
        """The records that other peers published about themselves; entries may have expired."""

    def observed(self, peer_id: str) -> tuple[str, ...]:
        """Remote ends of a peer's connections, as multiaddrs; empty without one."""

    def is_banned(self, peer_id: str) -> bool:
        """Whether this node has banned a peer."""

    def summarize(self, summary: MemberSummary | None, measured: bytes = b"") -> None:
        """Tell members at each renewal of its entry how far this node is, and what authors' groups are worth to it."""


class Transport(RecordTransport, RequestTransport, PeerTransport, Protocol):
    """A network: moves bytes between peers."""

    def start(self) -> None:
        """Open the network. Raises `TransportError` when the stack itself cannot run; unreachable peers are not an
        error."""

    def counters(self) -> dict[str, int]:
        """Cumulative counts.

        Records: `published`, `delivered` by gossip, `repaired` and `backfilled` from peers, `fetched` because of their
        size, `duplicates`; drops by reason; failures and restarts.
        """

    def close(self) -> None:
        """Leave the swarm and stop every thread and process that this transport started."""


KeepSample = Callable[[Fate, GradedGroup | RolloutGroup], None]
"""Keeps a sample of a group for people, with what became of it; graded if it was. May be called for every group."""

NEWCOMERS = ""
"""The account and author that all peers without standing share."""
RECORDED = "recorded"
"""The author of groups that a node reads from a file; no peer id can be it."""


class GroupExchange(Protocol):
    """Sends and receives signed rollout groups over any transport."""

    def share(self, group: RolloutGroup) -> RolloutGroup | None:
        """Stamp with the run id, sign and publish; returns the group as published, or None without a run."""

    def receive(self) -> tuple[list[ReceivedGroup], dict[Reason, int]]:
        """The groups that passed the envelope checks, and the refusals by reason."""

    def share_all(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup | None]:
        """Share several groups: each is sent to everybody, or all are offered if that costs members less.

        Returns each as `share` does, and None for those beyond what the swarm can carry.
        """

    def took(self, num_groups: int, num_wanted: int) -> None:
        """The last update took this many of others' groups of those it wanted: a node that goes short shares more."""

    def offers(self) -> list[OfferedGroup]:
        """What others offered, as far as the last `receive` saw it, without groups that have arrived."""

    def commitments(self) -> list[Commitment]:
        """What others committed to by offers and groups, as far as the last `receive` saw it, in the order heard."""

    def banned(self) -> frozenset[str]:
        """Peers in quarantine, as of the last `receive`: nothing of theirs arrives."""

    def pull(self, offered: OfferedGroup, patience_s: float) -> None:
        """Fetch a group on offer; a later `receive` returns it. If its author is asked and does not give it in time,
        that is a complaint about it.
        """

    def wait(self, timeout_s: float) -> bool:
        """Block until records arrive; returns whether any did."""

    def account(self, peer_id: str) -> str:
        """The account charged for a peer's groups: its own once it has been useful, the newcomers' before that."""

    def report(self, peer_id: str, outcome: Outcome, verify_s: float = 0.0) -> None:
        """Report the outcome of a received group.

        `verify_s`: seconds its verification took.
        """

    def established(self) -> frozenset[str]:
        """Peers that have been useful for long enough to count as separate authors."""

    def status(self) -> NetworkStatus:
        """The network as it is now."""
