"""A worker: samples with its learner's snapshots, grades, and sends what it got with the version of every token.

    feed ──▶ install: between two decode steps ──▶ engine ──▶ groups, as they are finished ──▶ graded ──▶ swarm
                                                     ▲
                            questions of its own stream, many at once: a finished one's place is filled at once

It never waits for the learner's steps. It goes on under the snapshot it has while the next one arrives; running
sequences live through the change. It pauses when its version lags more than the budget, for then nothing that it
samples could be used, and while the groups that it has find no room to be sent. The snapshot before is kept until the
new one has generated: one that cannot is taken back.
Source: arXiv:2602.02192, algorithm 1; changes in flight: arXiv:2509.19128; the pause: arXiv:2604.11554, section 3.3.
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
    """How `swarm work` samples for a learner, and how `swarm join --follow` looks at its snapshots."""

    learner: str | None = None
    """The learner's peer id, whose signature makes a snapshot one. Default: for a worker the founder of the run, for a
    peer nobody."""
    adopt_questions: int = Field(128, ge=0)
    """`swarm join --follow`: questions that both policies answer; the one with more right answers is kept. 0:
    never adopt one."""
    questions: int = Field(64, ge=1)
    """Questions drawn at once. They are answered as places become free, and a place stays empty only at their end."""
    price: float = Field(0.0, ge=0)
    """What this worker costs an hour: of workers that give the same the learner wants the cheaper ones."""
    swap_in_flight: bool = True
    """Take a new snapshot between two decode steps; otherwise only when all questions drawn are answered."""


class BatchReport(Struct, frozen=True):
    """What became of one batch of questions."""

    num_groups: int
    reward: float | None
    """Mean over the completions graded; None when there were none."""
    num_tokens: int
    seconds: float
    figures: dict[str, float] = {}
    """Of the groups graded, by conventional name."""


class Follower:
    """The side that samples. `install` may be called from another thread while `run_batch` samples."""

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
        """A worker without a snapshot. `read` unpacks one, `hides` tells of token ids that a text would not show.

        `max_staleness` is the learner's budget, `learner_version` what it says of itself, `wanted` whether its orders
        are to go on. A batch ends early when it is not. `has_room`: whether a group can be sent without another being
        lost for it; until it can, a batch stands still, and `pause` is called between two looks.
        """
        self.ledger = ledger
        self.num_completions = 0
        """Graded so far."""
        self.reward = 0.0
        """Sum of their rewards."""
        self.num_installed = 0
        self.num_refused = 0
        """Snapshots that did not fit, or could not generate."""
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
        """What was installed before it, until that has generated."""
        self._ungraded: dict[str, RolloutGroup] = {}
        self._unsent: deque[RolloutGroup] = deque()
        """With signal; they wait for room."""
        self._figures: dict[str, Figure] = {}
        """Of the batch at hand."""

    @property
    def version(self) -> int | None:
        """The snapshot it samples from."""
        installed = self._installed
        return installed[0] if installed else None

    @property
    def lagging(self) -> bool:
        """Whether nothing it samples now could be used: there is no snapshot yet, or the learner is far ahead of it."""
        version = self.version
        return version is None or self._is_stale(version)

    @property
    def held_up(self) -> bool:
        """Whether groups wait for room to be sent: what is sampled now would only wait behind them."""
        return len(self._unsent) > 0

    def install(self) -> bool:
        """Go on with the newest snapshot, if there is a newer one that is complete; whether there was."""
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
        """Answer the next questions of its stream, group by group, unless it lags or is not wanted any more."""
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
        """Give away what has been graded since the last call, as far as there is room."""
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
        """Have a group graded while sampling goes on."""
        group = self._own.make(question.ref, completions, (0.0,) * len(completions))
        key = str(group.sequence)
        self._ungraded[key] = group
        self._verifier.submit(key, question.ref, [completion.text for completion in completions])

    def _share(self, group: RolloutGroup) -> None:
        """What is too old by now would only be dropped by the learner."""
        if self._is_stale(oldest_version(group)):
            self.ledger.local(Reason.STALE_VERSION)
        elif self._own.share(group) is not None:
            self.ledger.shared(1)

    def _is_stale(self, version: int) -> bool:
        """Whether the learner refuses tokens of this version, by its own word or by what it has announced."""
        known = [newest for newest in (self._learner_version(), self._feed.announced()) if newest is not None]
        return max(known, default=version) - version > self._max_staleness()

    def _has_generated(self, completions: Sequence[Completion]) -> None:
        """Let go of the snapshot before when the new one has sampled a token."""
        with self._lock:
            if self._installed and any(
                span.version == self._installed[0] for completion in completions for span in completion.versions
            ):
                self._before = None

    def _take_back(self) -> bool:
        """Go back to the snapshot before, for the newest one cannot generate; whether there is one."""
        with self._lock:
            if self._before is None:
                return False
            version, snapshot = self._before
            self._engine.swap(self._read(snapshot), version)
            self._installed, self._before = self._before, None
        self.num_refused += 1
        return True
