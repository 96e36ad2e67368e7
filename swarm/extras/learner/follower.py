"""A worker: samples with its learner's snapshots, grades the groups, and sends them with the version of every token.

    feed ──▶ install: between two decode steps ──▶ engine ──▶ groups, as they are finished ──▶ graded ──▶ swarm
                                                     ▲
                            questions of its own stream, many at once: a free slot takes the next question, and
                            batches are only how they are counted (`swarm/groups/flow.py`)

It never waits for the learner's steps: it samples with its current snapshot while the next one arrives, and running
sequences continue under the new weights. A snapshot that cannot generate is rolled back: the last that has generated is
kept until a newer one has generated a token. A worker pauses when its version exceeds the staleness bound, because the
learner would drop its samples, and while its transport has no room for its groups (backpressure).
Source: arXiv:2602.02192, algorithm 1; changes in flight: arXiv:2509.19128; the pause: arXiv:2604.11554, section 3.3.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from swarm.errors import EngineError, SnapshotError, WeightsRefused
from swarm.extras.learner.protocols import SnapshotFeed
from swarm.figures import SLOTS_BUSY, Figure, joined, values
from swarm.groups.building import OwnGroups, with_grade, without_group
from swarm.groups.credit import has_signal
from swarm.groups.episodes import FinishedGroup
from swarm.groups.flow import Flow
from swarm.groups.rollout_figures import rollout_figures
from swarm.protocols import StreamingEngine, Verifier
from swarm.reasons import Reason
from swarm.telemetry.ledger import Ledger
from swarm.types import Completion, Grade, Orders, Question, Rejection, RolloutGroup, Sampling

if TYPE_CHECKING:
    from torch import Tensor

    from swarm.files import RandomAccessFile

logger = logging.getLogger(__name__)


class BatchReport(Struct, frozen=True):
    """The result of one batch of questions."""

    num_groups: int
    reward: float | None
    """Mean over the graded completions; None when there were none."""
    num_tokens: int
    seconds: float
    figures: dict[str, float] = {}
    """Figures of the graded groups, by conventional name."""


class SamplingPlan(Struct, frozen=True):
    """A worker's questions, completions and slots."""

    seed: int
    """Seed of its stream of questions and of their completions."""
    num_questions: int
    """Per batch."""
    group_size: int
    sampling: Sampling
    first: int = 0
    """Index of the first question in the stream."""
    slots: int = 0
    """Sequences that are sampled together; 0: those of a batch."""
    batches_a_call: int = 1
    """Batches whose questions may be under way together. 1: a batch begins when the one before has ended."""


class Follower:
    """Samples for a learner. Another thread may call `snapshots.install` while `run_batch` samples."""

    def __init__(
        self,
        plan: SamplingPlan,
        engine: StreamingEngine,
        verifier: Verifier,
        snapshots: SnapshotInstaller,
        groups: WorkerGroups,
        *,
        orders: Callable[[], Orders | None],
        cancelled: Callable[[], bool],
        pause: Callable[[], None],
    ) -> None:
        """A worker without a snapshot.

        `orders` returns the learner's last orders, None while it is away. A batch ends early when the learner wants no
        more rollouts or the node is `cancelled`. While there is no room for its groups, the batch waits, and `pause` is
        called between two checks.
        """
        self.snapshots = snapshots
        self.groups = groups
        self._plan = plan
        self._engine = engine
        self._verifier = verifier
        self._orders = orders
        self._cancelled = cancelled
        self._pause = pause
        self._position = plan.first
        self._drawn: deque[tuple[int, Question]] = deque()
        """Questions not asked yet, with their index in the stream."""
        self._asked: dict[int, Question] = {}
        """Questions with open episodes."""
        self._num_in_call = 0
        """Questions asked since the engine's call began."""
        self._flow = self._new_flow()
        self._games: Generator[tuple[int, FinishedGroup | Rejection]] | None = None
        """Flow of the engine's open call."""
        self._last_orders: Orders | None = None
        """They hold while the learner is away."""

    @property
    def wanted(self) -> bool:
        """Whether the learner wants more rollouts of this worker."""
        orders = self._orders()
        return orders is not None and orders.active and not orders.finished and not self._cancelled()

    @property
    def lagging(self) -> bool:
        """Whether the learner would drop what this worker samples now: it has no snapshot, or one that is too old."""
        version = self.snapshots.version
        return version is None or self._is_stale(version)

    def run_batch(self) -> BatchReport:
        """Answer as many questions of its stream as a batch has, until it lags or is no longer wanted.

        Open episodes at the end continue in the next batch, and are abandoned at an early end.
        """
        groups = self.groups
        began, completions, reward = time.perf_counter(), groups.num_completions, groups.reward
        groups.begin_batch()
        self._begin_call()
        usage = self._flow.usage
        num_groups = num_tokens = 0
        version = self.snapshots.version
        try:
            while num_groups < self._plan.num_questions and (found := self._next()):
                number, played = found
                num_groups += 1
                usable = groups.add(self._asked.pop(number), played)
                groups.ledger.generated(1)
                num_tokens += sum(len(completion.token_ids) for completion in usable)
                self.snapshots.confirm(usable)
                self.send()
                while groups.held_up and self._goes_on():
                    self._pause()
                    self.send()
                if not self._goes_on():
                    self.stop()
                    break
                version = self.snapshots.version
        except EngineError:
            self.stop()
            if not self.snapshots.roll_back(version):
                raise
        if not self._asked:
            self._end_call()
        self.send()
        graded = groups.num_completions - completions
        mean_reward = (groups.reward - reward) / graded if graded else None
        busy = self._flow.usage.since(usage)
        return BatchReport(
            num_groups,
            mean_reward,
            num_tokens,
            time.perf_counter() - began,
            values(groups.figures) | ({} if busy is None else {SLOTS_BUSY: busy}),
        )

    def stop(self) -> None:
        """Give up what is under way."""
        if self._games is None:
            return
        self._end_call()
        self.groups.ledger.generated(len(self._asked))
        self.groups.ledger.local(Reason.NOT_FINISHED, len(self._asked))
        self._asked.clear()

    def send(self) -> None:
        """Share the groups graded since the last call, as far as there is room."""
        self.groups.send(self._is_stale)

    def _new_flow(self) -> Flow:
        plan = self._plan
        seed = int(np.random.SeedSequence([plan.seed]).generate_state(1)[0])
        slots = plan.slots or plan.num_questions * plan.group_size
        return Flow(self._engine.stream, self._verifier, self._more, plan.group_size, plan.sampling, seed, slots)

    def _next(self) -> tuple[int, FinishedGroup | Rejection] | None:
        """The next question whose episodes are over; None when an engine's call has ended with its last one."""
        return next(self._games, None) if self._games is not None else None

    def _begin_call(self) -> None:
        if self._games is None:
            self._num_in_call = 0
            self._flow = self._new_flow()
            self._games = self._flow.play()

    def _end_call(self) -> None:
        if self._games is not None:
            self._games.close()
        self._games = None

    def _more(self) -> tuple[int, Question] | None:
        """The next question of the stream, with its index, as long as the engine's call may take one."""
        plan = self._plan
        if self._num_in_call == plan.num_questions * plan.batches_a_call:
            return None
        if not self._drawn:
            questions = self._verifier.draw(plan.seed, self._position, plan.num_questions)
            self._drawn.extend(enumerate(questions, start=self._position))
            self._position += len(questions)
        number, question = self._drawn.popleft()
        self._num_in_call += 1
        self._asked[number] = question
        return number, question

    def _goes_on(self) -> bool:
        return not self.lagging and self.wanted

    def _is_stale(self, version: int) -> bool:
        """Whether the learner refuses tokens of this version, by its heartbeat responses or its announcements.

        Before its first response it judges that alone.
        """
        orders = self._last_orders = self._orders() or self._last_orders
        if orders is None:
            return False
        return max(orders.version, self.snapshots.announced or 0) - version > orders.max_staleness


class SnapshotInstaller:
    """Installs snapshots in an engine. Another thread may call `install` while the engine generates."""

    def __init__(
        self, engine: StreamingEngine, feed: SnapshotFeed, read: Callable[[RandomAccessFile], Mapping[str, Tensor]]
    ) -> None:
        """No snapshot yet; `read` opens the weights in one."""
        self.num_installed = 0
        self.num_refused = 0
        """Snapshots that did not fit the policy or could not generate."""
        self.problem: tuple[int, str] | None = None
        """Version that could not be installed last, and why; None once one could."""
        self._engine = engine
        self._feed = feed
        self._read = read
        self._lock = threading.Lock()
        self._installed: tuple[int, RandomAccessFile] | None = None
        self._before: tuple[int, RandomAccessFile] | None = None
        """The last snapshot that has generated, until the installed one has."""
        self._proven: int | None = None
        """The last version that has generated."""

    @property
    def version(self) -> int | None:
        """The installed snapshot; None before the first."""
        installed = self._installed
        return installed[0] if installed else None

    @property
    def announced(self) -> int | None:
        """The newest version that the learner has announced; None before the first."""
        return self._feed.announced()

    def install(self) -> bool:
        """Install the newest complete snapshot if it is newer than the current one; returns whether it was."""
        found = self._feed.newest()
        if found is None:
            return False
        version, snapshot = found
        try:
            weights = self._read(snapshot)
            with self._lock:
                self._engine.swap(weights, version)
                self._before, self._installed = self._before or self._installed, found
        except (SnapshotError, WeightsRefused) as error:
            self.num_refused += 1
            self.problem = version, str(error)
            return False
        self.num_installed += 1
        self.problem = None
        return True

    def confirm(self, completions: Sequence[Completion]) -> None:
        """Release the snapshot before if the installed one has sampled a token of `completions`."""
        with self._lock:
            if self._installed and any(
                span.version == self._installed[0] for completion in completions for span in completion.versions
            ):
                self._before, self._proven = None, self._installed[0]

    def roll_back(self, failed: int | None) -> bool:
        """Reinstall the last snapshot that has generated because the version `failed` cannot; without one, have none.

        A snapshot that was installed in the meantime stays. Returns whether to continue, with it or with the next one:
        not if `failed` has generated before, and the engine itself is broken.
        """
        with self._lock:
            if self.version != failed:
                return True
            if failed is None or failed == self._proven:
                return False
            if self._before is not None:
                version, snapshot = self._before
                self._engine.swap(self._read(snapshot), version)
            self._installed, self._before = self._before, None
        self.num_refused += 1
        self.problem = failed, "the policy cannot generate with it"
        return True


class WorkerGroups:
    """Grades and sends a worker's groups, and counts what becomes of them."""

    def __init__(
        self,
        own: OwnGroups,
        hides: Callable[[Sequence[int], int | None], bool],
        has_room: Callable[[], bool],
    ) -> None:
        """No groups yet.

        `hides` says whether a turn's token ids, of which so many come before an inserted end of a thought, contain
        special tokens that the text does not show; `has_room` whether a group
        can be sent without displacing another.
        """
        self.ledger = Ledger()
        self.num_completions = 0
        """Completions graded so far."""
        self.reward = 0.0
        """Sum of their rewards."""
        self.figures: dict[str, Figure] = {}
        """Figures of the groups graded since `begin_batch`."""
        self._own = own
        self._hides = hides
        self._has_room = has_room
        self._ungraded: list[tuple[RolloutGroup, Future[Grade | Rejection]]] = []
        self._told: set[Reason] = set()
        """Why questions had no groups so far."""
        self._unsent: deque[RolloutGroup] = deque()
        """With signal; they wait for room."""

    @property
    def held_up(self) -> bool:
        """Whether groups wait for room to be sent: what is sampled now would only wait behind them."""
        return len(self._unsent) > 0

    def begin_batch(self) -> None:
        """Start the figures of a new batch."""
        self.figures = {}

    def add(self, question: Question, played: FinishedGroup | Rejection) -> tuple[Completion, ...]:
        """Keep the answers to one question until they are graded, and return them; none if they cannot be used."""
        if isinstance(played, Rejection):
            self._lost(played)
            return ()
        completions = played.completions
        if any(self._hides(turn.token_ids, turn.forced) for completion in completions for turn in completion.by_turn()):
            self.ledger.local(Reason.HIDDEN_TOKENS)
            return ()
        self._ungraded.append((self._own.make(question.ref, completions, (0.0,) * len(completions)), played.grading))
        return completions

    def _lost(self, rejection: Rejection) -> None:
        """Count a question without a group, and say why the first time."""
        self.ledger.local(rejection.reason)
        if rejection.reason not in self._told:
            self._told.add(rejection.reason)
            logger.warning("a question has no group; %s", without_group(rejection))

    def send(self, is_stale: Callable[[int], bool]) -> None:
        """Share the groups with signal that are graded by now, as far as there is room.

        `is_stale` says whether the learner refuses tokens of a version.
        """
        waiting, self._ungraded = self._ungraded, []
        for group, grading in waiting:
            if not grading.done():
                self._ungraded.append((group, grading))
                continue
            verdict = grading.result()
            if isinstance(verdict, Rejection):
                self._lost(verdict)
                continue
            self.num_completions += len(verdict.rewards)
            self.reward += sum(verdict.rewards)
            self.figures = joined([self.figures, rollout_figures([with_grade(group, verdict)])])
            if has_signal(verdict.rewards):
                self._unsent.append(replace(group, rewards=verdict.rewards))
            else:
                self.ledger.local(Reason.ZERO_ADVANTAGE)  # the learner would only drop it
        while self._unsent and self._has_room():
            group = self._unsent.popleft()
            if is_stale(group.oldest_version):
                self.ledger.local(Reason.STALE_VERSION)
            elif self._own.share(group) is not None:
                self.ledger.shared(1)
