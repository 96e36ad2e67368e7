"""A worker: samples with its learner's snapshots, grades the groups, and sends them with the version of every token.

    feed ──▶ install: between two decode steps ──▶ engine ──▶ groups, as they are finished ──▶ graded ──▶ swarm
                                                     ▲
                            questions of its own stream, many at once: a free slot takes the next question

It never waits for the learner's steps: it samples with its current snapshot while the next one arrives, and running
sequences continue under the new weights. It pauses when its version exceeds the staleness bound, because the learner
would drop its samples, and while its transport has no room for its groups. The previous snapshot is kept until the new
one has generated a token; if the new one cannot, the worker rolls back. Source: arXiv:2602.02192, algorithm 1; changes
in flight: arXiv:2509.19128; the pause: arXiv:2604.11554, section 3.3.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from pydantic import Field

from swarm.errors import EngineError, SnapshotError, WeightsRefused
from swarm.figures import Figure, joined, values
from swarm.groups.building import OwnGroups
from swarm.groups.rollout_figures import rollout_figures
from swarm.groups.signal import has_signal
from swarm.groups.versions import oldest_version
from swarm.protocols import GroupExchange, SnapshotFeed, StreamingEngine, Verifier
from swarm.reasons import Reason
from swarm.settings import Settings
from swarm.telemetry.ledger import Ledger
from swarm.types import Completion, GradedGroup, PolicyId, Question, Rejection, RolloutGroup, Sampling

if TYPE_CHECKING:
    from torch import Tensor


POLL_S = 0.02


class FollowSettings(Settings):
    """How `swarm work` samples for a learner, and how `swarm join --follow` uses its snapshots."""

    learner: str | None = None
    """Peer id of the learner whose signed snapshots are accepted. Default: the founder of the run for a worker, none
    for a peer."""
    adopt_questions: int = Field(128, ge=0)
    """`swarm join --follow`: questions that both policies answer; the node keeps the policy with more right answers. 0:
    never adopt a snapshot."""
    questions: int = Field(64, ge=1)
    """Questions per batch. Free slots of the engine take the next question; slots stay empty only at the end of a
    batch."""
    price: float = Field(0.0, ge=0)
    """Price of this worker per hour; at equal rates the learner prefers cheaper workers."""
    swap_in_flight: bool = True
    """Install a new snapshot between two decode steps; otherwise only between batches."""


class BatchReport(Struct, frozen=True):
    """The result of one batch of questions."""

    num_groups: int
    reward: float | None
    """Mean over the graded completions; None when there were none."""
    num_tokens: int
    seconds: float
    figures: dict[str, float] = {}
    """Figures of the graded groups, by conventional name."""


class Follower:
    """Samples for a learner. Another thread may call `install` while `run_batch` samples."""

    def __init__(
        self,
        *,
        peer_id: str,
        policy_id: PolicyId,
        seed: int,
        group_size: int,
        settings: FollowSettings,
        sampling: Sampling,
        engine: StreamingEngine,
        verifier: Verifier,
        exchange: GroupExchange,
        feed: SnapshotFeed,
        read: Callable[[bytes], Mapping[str, Tensor]],
        ledger: Ledger,
        max_staleness: Callable[[], int],
        hides: Callable[[Sequence[int]], bool] = lambda token_ids: False,
        learner_version: Callable[[], int | None] = lambda: None,
        wanted: Callable[[], bool] = lambda: True,
        has_room: Callable[[], bool] = lambda: True,
        pause: Callable[[], None] = lambda: time.sleep(POLL_S),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """A worker without a snapshot.

        `read` unpacks a snapshot; `hides` says whether token ids contain special tokens that the text does not show.
        The learner reports `max_staleness` and `learner_version`; `wanted` says whether it wants more rollouts. A batch
        ends early when it does not. `has_room` says whether a group can be sent without displacing another; while it
        cannot, the batch waits, and `pause` is called between two checks.
        """
        self.ledger = ledger
        self.num_completions = 0
        """Completions graded so far."""
        self.reward = 0.0
        """Sum of their rewards."""
        self.num_installed = 0
        self.num_refused = 0
        """Snapshots that did not fit the policy or could not generate."""
        self._own = OwnGroups(
            peer_id=peer_id, policy_id=policy_id, sampling=sampling, exchange=exchange, token_ids=True, clock=clock
        )
        self._seed = seed
        self._group_size = group_size
        self._settings = settings
        self._sampling = sampling
        self._engine = engine
        self._verifier = verifier
        self._feed = feed
        self._read = read
        self._max_staleness = max_staleness
        self._hides = hides
        self._learner_version = learner_version
        self._wanted = wanted
        self._has_room = has_room
        self._pause = pause
        self._position = 0
        self._lock = threading.Lock()
        self._installed: tuple[int, bytes] | None = None
        self._before: tuple[int, bytes] | None = None
        """The previous snapshot, until the installed one has generated."""
        self._ungraded: dict[str, RolloutGroup] = {}
        self._unsent: deque[RolloutGroup] = deque()
        """With signal; they wait for room."""
        self._figures: dict[str, Figure] = {}
        """Figures of the current batch."""

    @property
    def version(self) -> int | None:
        """The snapshot it samples from."""
        installed = self._installed
        return installed[0] if installed else None

    @property
    def lagging(self) -> bool:
        """Whether the learner would drop what this worker samples now: it has no snapshot, or one that is too old."""
        version = self.version
        return version is None or self._is_stale(version)

    @property
    def held_up(self) -> bool:
        """Whether groups wait for room to be sent: what is sampled now would only wait behind them."""
        return len(self._unsent) > 0

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
                self._before, self._installed = self._installed, found
        except (SnapshotError, WeightsRefused):
            self.num_refused += 1
            return False
        self.num_installed += 1
        return True

    def run_batch(self) -> BatchReport:
        """Answer the next questions of its stream, group by group, until it lags or is no longer wanted."""
        began, completions, reward, tokens, groups = time.perf_counter(), self.num_completions, self.reward, 0, 0
        self._figures = {}
        questions = self._verifier.draw(self._seed, self._position, self._settings.questions)
        sampling_seed = int(np.random.SeedSequence([self._seed, self._position]).generate_state(1)[0])
        self._position += len(questions)
        prompts = [question.prompt for question in questions]
        try:
            for index, answers in self._engine.stream(prompts, self._group_size, self._sampling, sampling_seed):
                groups += 1
                if isinstance(answers, Rejection):
                    self.ledger.local(answers.reason)
                elif any(self._hides(completion.token_ids) for completion in answers):
                    self.ledger.local(Reason.HIDDEN_TOKENS)
                else:
                    tokens += sum(len(completion.token_ids) for completion in answers)
                    self._has_generated(answers)
                    self._grade(questions[index], answers)
                self.send()
                while self.held_up and self._goes_on():
                    self._pause()
                    self.send()
                if not self._goes_on():
                    break
        except EngineError:
            if not self._take_back():
                raise
        self.ledger.generated(len(questions))
        self.ledger.local(Reason.NOT_FINISHED, len(questions) - groups)
        self.send()
        graded = self.num_completions - completions
        mean_reward = (self.reward - reward) / graded if graded else None
        return BatchReport(groups, mean_reward, tokens, time.perf_counter() - began, values(self._figures))

    def send(self) -> None:
        """Share the groups graded since the last call, as far as there is room."""
        for key, verdict in self._verifier.collect():
            group = self._ungraded.pop(key)
            if isinstance(verdict, Rejection):
                self.ledger.local(verdict.reason)
                continue
            self.num_completions += len(verdict.rewards)
            self.reward += sum(verdict.rewards)
            graded = GradedGroup(group, verdict.prompt, verdict.rewards)
            self._figures = joined([self._figures, rollout_figures([graded])])
            if has_signal(verdict.rewards):
                self._unsent.append(replace(group, rewards=verdict.rewards))
            else:
                self.ledger.local(Reason.ZERO_ADVANTAGE)  # the learner would only drop it
        while self._unsent and self._has_room():
            self._share(self._unsent.popleft())

    def _goes_on(self) -> bool:
        return not self.lagging and self._wanted()

    def _grade(self, question: Question, completions: Sequence[Completion]) -> None:
        """Queue a group for grading while sampling continues."""
        group = self._own.make(question.ref, completions, (0.0,) * len(completions))
        key = str(group.sequence)
        self._ungraded[key] = group
        self._verifier.submit(key, question.ref, [completion.text for completion in completions])

    def _share(self, group: RolloutGroup) -> None:
        """Share a group that is not too old for the learner."""
        if self._is_stale(oldest_version(group)):
            self.ledger.local(Reason.STALE_VERSION)
        elif self._own.share(group) is not None:
            self.ledger.shared(1)

    def _is_stale(self, version: int) -> bool:
        """Whether the learner refuses tokens of this version, by its heartbeat response or its announcements."""
        known = [newest for newest in (self._learner_version(), self._feed.announced()) if newest is not None]
        return max(known, default=version) - version > self._max_staleness()

    def _has_generated(self, completions: Sequence[Completion]) -> None:
        """Release the previous snapshot once the new one has sampled a token."""
        with self._lock:
            if self._installed and any(
                span.version == self._installed[0] for completion in completions for span in completion.versions
            ):
                self._before = None

    def _take_back(self) -> bool:
        """Roll back to the previous snapshot because the newest cannot generate; returns whether there was one."""
        with self._lock:
            if self._before is None:
                return False
            version, snapshot = self._before
            self._engine.swap(self._read(snapshot), version)
            self._installed, self._before = self._before, None
        self.num_refused += 1
        return True
